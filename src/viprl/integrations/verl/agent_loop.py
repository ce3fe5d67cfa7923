"""Agent loop workers that turn a reward that is missing into a row that says so.

In stock verl a reward of None leaves a row without its reward field, and a reward function that raises fails the whole
session. Here both, in training, become a row whose reward is NaN: it is trained with advantage 0, stays outside its
group's baseline and is counted. Validation keeps verl's behaviour, and so does a rollout that fails to be generated.

With ``viprl.grade_own_tokens`` reward functions are given the policy's own tokens (response mask 1) alone.
"""

from __future__ import annotations

import logging
from typing import Any

import ray
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, AgentLoopWorkerTQ

from viprl.integrations.verl.options import select

logger = logging.getLogger("viprl")

MANAGER_PATH = f"{__name__}.AdaptiveAgentLoopManager"

# verl decorates the class with ray.remote; its plain class is what can be subclassed.
_Worker = AgentLoopWorkerTQ.__ray_metadata__.modified_class


def own_tokens(output: Any) -> list[int]:
    """The response tokens that the policy wrote itself, without those of tools."""
    return [token for token, mask in zip(output.response_ids, output.response_mask, strict=True) if mask]


class _AdaptiveWorker(_Worker):  # type: ignore[misc, valid-type]
    _reported = False

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **kwargs: Any) -> None:
        outputs = output if isinstance(output, list) else [output]
        if outputs and not validate:
            await self._score(outputs, kwargs)
        await super()._agent_loop_postprocess(output, validate, **kwargs)

    async def _compute_score(self, outputs: list[Any], kwargs: dict[str, Any]) -> None:
        graded = outputs
        if select(self.config, "viprl.grade_own_tokens", False):
            graded = [output.model_copy(update={"response_ids": own_tokens(output)}) for output in outputs]
        await super()._compute_score(graded, kwargs=kwargs)
        outputs[-1].reward_score = graded[-1].reward_score  # extra fields are shared with the copy

    async def _score(self, outputs: list[Any], kwargs: dict[str, Any]) -> None:
        """Fill the reward of a session's last output; NaN where there is none."""
        final = outputs[-1]
        try:
            await self._compute_score(outputs, kwargs=kwargs)
        except Exception as error:
            self._report(error, kwargs)
            final.reward_score = float("nan")
            final.extra_fields["reward_extra_info"] = {}
        # without reward workers the score is computed later, by a colocated reward model
        if final.reward_score is None and self.reward_loop_worker_handles is not None:
            final.reward_score = float("nan")

    def _report(self, error: Exception, kwargs: dict[str, Any]) -> None:
        # one traceback per worker: a broken reward function raises thousands of times
        level = logging.DEBUG if self._reported else logging.ERROR
        logger.log(
            level,
            "viprl: the reward function raised for prompt %s (uid %s, session %s); its reward counts as missing. "
            "Further ones of this worker are logged at DEBUG.",
            *(kwargs.get(key) for key in ("viprl_prompt_id", "uid", "session_id")),
            exc_info=error,
        )
        self._reported = True


AdaptiveAgentLoopWorker = ray.remote(_AdaptiveWorker)


class AdaptiveAgentLoopManager(AgentLoopManagerTQ):
    """verl's manager with workers that report missing rewards."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = AdaptiveAgentLoopWorker
