"""``variance="learned"``: the trainer's own backward passes teach the allocator the gradient's variance.

A ``GradientNormHook`` reads every rollout's gradient norm in the first pass over a generation batch (while it is
on-policy) and hands them to ``OutcomeMoments`` after the last micro-batch of that pass. TRL shuffles a generation
batch before it splits it, so every row carries its number along.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from viprl.errors import ConfigurationError
from viprl.gradient.norm_hook import GradientNormHook
from viprl.variance import OutcomeMoments

ROW = "viprl_row"


class LearnedVarianceMixin:
    """Put before ``AdaptiveRolloutMixin``; does nothing unless the config says ``variance="learned"``."""

    args: Any
    allocator: Any
    accelerator: Any
    last_step: Any
    norm_hook: GradientNormHook | None = None
    _norms: NDArray[np.float64] | None = None
    _passes_due = 0
    _plan_due: str | None = None  # key of the plan whose norms are collected; on the main process

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        model = getattr(self.allocator, "model", None)
        learned = self.args.variance == "learned"
        if model is not None and learned and not isinstance(model, OutcomeMoments):
            raise ConfigurationError(
                f"variance='learned' needs an allocator whose model is OutcomeMoments, but got {type(model).__name__}"
            )
        if learned:
            bare = self.accelerator.unwrap_model(self.model)  # type: ignore[attr-defined]
            self.norm_hook = GradientNormHook(bare, layers=self.args.norm_layers)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        if self.norm_hook is not None and self.model.training:  # type: ignore[attr-defined]
            advantages = output["advantages"]
            output[ROW] = torch.arange(len(advantages), device=advantages.device)
            self._norms = np.full(len(advantages), np.nan)
            self._passes_due = self.args.steps_per_generation
            self._plan_due = self.last_step.plan and self.last_step.plan.key
        return output

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if self.norm_hook is not None and self._passes_due > 0 and ROW in inputs:
            self.norm_hook.begin(inputs["advantages"])
        return super().compute_loss(model, inputs, *args, **kwargs)  # type: ignore[misc]

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        inputs = super()._prepare_inputs(generation_batch)  # type: ignore[misc]
        self._rows = inputs.get(ROW) if isinstance(inputs, dict) else None
        return inputs

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(*args, **kwargs)  # type: ignore[misc]
        if self.norm_hook is not None and self._passes_due > 0 and self._rows is not None:
            if self._norms is not None:
                self._norms[self._rows.cpu().numpy()] = self.norm_hook.collect()
            self._passes_due -= 1
            if self._passes_due == 0:
                self._teach()
        return loss

    def _teach(self) -> None:
        """Hand the norms of the whole generation batch to the allocator, on the main process."""
        local = torch.as_tensor(self._norms, device=self.accelerator.device, dtype=torch.float64)
        norms = self._gathered(local)  # type: ignore[attr-defined]
        self._norms = None
        due, self._plan_due = self._plan_due, None
        if due is not None:
            self.allocator.observe_norms(due, norms)

    def _window_extras(self) -> dict[str, Any]:
        """A checkpoint inside the first pass over a generation batch needs the norms seen so far and whose they are."""
        extras: dict[str, Any] = super()._window_extras()  # type: ignore[misc]
        if self._norms is None:
            return extras
        extras["learned"] = {
            "norms": torch.from_numpy(self._norms),
            "passes_due": self._passes_due,
            "plan_due": self._plan_due,
        }
        return extras

    def _restore_window_extras(self, extras: dict[str, Any]) -> None:
        super()._restore_window_extras(extras)  # type: ignore[misc]
        saved = extras.get("learned")
        if saved is None:
            return
        self._norms, self._passes_due = saved["norms"].numpy(), int(saved["passes_due"])
        self._plan_due = saved["plan_due"]
