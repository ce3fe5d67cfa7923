"""RolloutAllocator: predict -> variance -> allocate; observe. The one place where the three steps meet.

Notation: B prompts in the batch, C rollouts of the step, L <= n_q <= U the bounds of a group's size.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from viprl._arrays import FloatArray
from viprl.allocation import VIP, Policy, Uniform
from viprl.checkpoint import read_state, write_state
from viprl.errors import CheckpointError, InvalidInputError, PlanError
from viprl.feedback import Guard, OutageDetector, PredictionScores, Rewards, read_rewards
from viprl.feedback.guard import bernoulli_noise
from viprl.feedback.rewards import detect_values, successes
from viprl.history import history_rows
from viprl.plan import Plan
from viprl.prediction.base import Prediction, Predictor, PromptId
from viprl.variance import VarianceModel

logger = logging.getLogger("viprl")

REMEMBERED_PLANS = 4096  # plans that may be in flight or repeated by mistake


@dataclass(frozen=True)
class RestoreReport:
    """Prompt ids of a checkpoint against the predictor's own: ``new`` start cold, ``gone`` are dropped."""

    new: tuple[PromptId, ...]
    gone: tuple[PromptId, ...]
    kept: tuple[PromptId, ...]


class RolloutAllocator:
    """Divides a rollout budget over the prompts of each step so that the policy gradient's variance is smallest.

    ``allocate`` is a pure function of (state, prompt ids, budget); ``observe`` is the only mutation.

    Args:
        predictor: success probabilities (or reward variances) of prompts; see ``viprl.prediction``.
        model: gradient variance as a function of prediction and group size; see ``viprl.variance``.
        min_group_size, max_group_size: bounds L, U on every group of a step.
        policy: how to allocate; the exact minimiser of the summed variance (``VIP()``) by default.
        guard: fall back to uniform groups while the realised variance is above uniform's; a ``Guard`` to tune it.
        quarantine: keep outages (rewards collapsing for many prompts at once) from the predictor; an
            ``OutageDetector`` to tune it.
        reward_values: the rewards (failure, success). By default {0, 1} and {-1, 1} are told apart by themselves.

    Attributes:
        step: number of steps observed.
        restored: what the last restore found in the prompt set, else None.
    """

    def __init__(
        self,
        predictor: Predictor,
        model: VarianceModel,
        *,
        min_group_size: int = 3,
        max_group_size: int = 32,
        policy: Policy | None = None,
        guard: bool | Guard = True,
        quarantine: bool | OutageDetector = True,
        reward_values: tuple[float, float] | None = None,
    ) -> None:
        if not 1 <= min_group_size <= max_group_size:
            raise InvalidInputError(
                "1 <= min_group_size <= max_group_size must hold, but got "
                f"(min_group_size={min_group_size}, max_group_size={max_group_size})"
            )
        if reward_values is not None and not reward_values[0] < reward_values[1]:
            raise InvalidInputError(f"reward_values must be (failure, success) in ascending order, got {reward_values}")
        self.predictor = predictor
        self.model = model
        self.policy: Policy = VIP() if policy is None else policy
        self.min_group_size, self.max_group_size = int(min_group_size), int(max_group_size)
        self.reward_values = None if reward_values is None else (float(reward_values[0]), float(reward_values[1]))
        self.step = 0
        self.restored: RestoreReport | None = None
        self._guard = guard if isinstance(guard, Guard) else Guard()
        # a learned model compares itself with uniform groups by gradient norms, which p(1-p) would contradict
        self._guarded = guard is not False and not getattr(model, "has_own_guard", False)
        self._outage = quarantine if isinstance(quarantine, OutageDetector) else OutageDetector()
        self._quarantine = quarantine is not False
        self._scores = PredictionScores()
        self._visits: dict[PromptId, int] = {}
        self._observed: dict[str, None] = {}
        self._metrics: dict[str, float] = {}
        self._history: list[dict[str, Any]] = []

    @property
    def guard_holding(self) -> bool:
        """True while the guard replaces the policy's group sizes by uniform ones."""
        return self._guarded and self._guard.holding

    def predict(self, prompt_ids: Sequence[PromptId]) -> Prediction:
        """The predictor's prediction for B prompts; pure."""
        return self.predictor.predict(prompt_ids)

    def allocate(self, prompt_ids: Sequence[PromptId], budget: int, *, scale: ArrayLike | None = None) -> Plan:
        """Group sizes for one step; pure: every process with the same state computes the same plan.

        Args:
            prompt_ids: the batch; an id may occur twice and then gets two groups.
            budget: C, spent exactly.
            scale: (B,) relative gradient noise of the prompts; equal by default.

        Raises:
            InfeasibleBudgetError: B * L <= C <= B * U does not hold.
            UnknownPromptError: the predictor does not know an id.
        """
        start = time.perf_counter()
        ids = tuple(prompt_ids)
        if not ids:
            raise InvalidInputError("a step must have at least one prompt, but got none")
        prediction = self.predictor.predict(ids)
        model = self._model_of(ids)
        bounds = {"min_group_size": self.min_group_size, "max_group_size": self.max_group_size}
        sizes = [
            policy.allocate(prediction, model=model, budget=budget, scale=scale, **bounds)
            for policy in (self.policy, Uniform())
        ]
        adaptive, uniform = (np.asarray(n, dtype=np.int64) for n in sizes)
        held = self._guarded and self._guard.replaces(float(prediction.cold.mean()))
        used = uniform if held else adaptive
        factor = 1.0 if scale is None else np.asarray(scale, dtype=np.float64)
        variance, uniform_variance, next_variance = (
            factor * model.variance(prediction, n) for n in (used, uniform, used + 1)
        )
        return Plan(
            prompt_ids=ids,
            group_sizes=used,
            prediction=prediction,
            budget=int(budget),
            step=self.step,
            policy=self.policy.name,
            model=self.model.name,
            adaptive_sizes=adaptive.copy(),
            uniform_sizes=uniform.copy(),
            variance=variance,
            uniform_variance=uniform_variance,
            next_variance=next_variance,
            min_group_size=np.full(len(ids), self.min_group_size),
            max_group_size=np.full(len(ids), self.max_group_size),
            guard_holding=held,
            seconds=time.perf_counter() - start,
        )

    def observe(
        self,
        plan: Plan,
        rewards: Any,
        *,
        tokens: ArrayLike | None = None,
        seconds: ArrayLike | None = None,
    ) -> None:
        """Learn from the rollouts of a plan. A call that raises has changed nothing.

        Args:
            plan: from ``allocate`` of this allocator (or of one with the same state).
            rewards: B groups in plan order, each with at most its planned rewards, or C rewards in plan order;
                None and NaN mean missing.
            tokens, seconds: (B,) tokens and time that the groups took, for the history.

        Raises:
            InvalidInputError: extra rollouts, infinite rewards, or rewards of a kind the predictor does not take.
            PlanError: the plan was observed before, or made by a later state.
        """
        start = time.perf_counter()
        key = self._check(plan)
        read = read_rewards(rewards, plan.group_sizes)
        extras = [None if x is None else np.asarray(x, dtype=np.float64) for x in (tokens, seconds)]
        for name, extra in zip(("tokens", "seconds"), extras, strict=True):
            if extra is not None and extra.shape != (len(plan),):
                raise InvalidInputError(f"`{name}` must have shape ({len(plan)},), but got {extra.shape}")
        binary = self.predictor.reward_kind == "binary"
        quarantined = self._learn_binary(plan, read) if binary else self._learn_real(plan, read)
        self._history = history_rows(plan, read, self.step, self._visits, self.reward_values or (0.0, 1.0), *extras)
        for prompt_id in plan.prompt_ids:
            self._visits[prompt_id] = self._visits.get(prompt_id, 0) + 1
        self._observed[key] = None
        while len(self._observed) > REMEMBERED_PLANS:
            self._observed.pop(next(iter(self._observed)))
        self.step += 1
        self._metrics = {**plan.metrics(), **self._seen(read, quarantined)}
        if not binary:
            del self._metrics["viprl/dead_groups_predicted"]
        self._metrics["viprl/overhead_seconds"] = plan.seconds + time.perf_counter() - start

    def metrics(self) -> dict[str, float]:
        """The last observed step's numbers for a logger; keys start with ``viprl/``; empty before the first."""
        return dict(self._metrics)

    def history_rows(self) -> list[dict[str, Any]]:
        """The last observed step in the history schema: one row per group with at least one reward."""
        return [dict(row) for row in self._history]

    def reliability(self) -> FloatArray:
        """(3, 10): rollouts, mean prediction and success rate in ten bins of the predicted probability."""
        return self._scores.reliability()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to one file, atomically."""
        write_state(path, self.state_dict())

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], predictor: Predictor, model: VarianceModel, **kwargs: Any
    ) -> RolloutAllocator:
        """An allocator with the saved state; arguments as for the constructor, and they must match the saved ones.

        A predictor over other prompts keeps what is known of those it shares; ``restored`` then says which ids are
        new, gone and kept.

        Raises:
            CheckpointError: damaged file, other format, other predictor, model, policy or bounds, other embeddings.
        """
        allocator = cls(predictor, model, **kwargs)
        allocator.load_state_dict(read_state(path))
        return allocator

    def state_dict(self) -> dict[str, Any]:
        """What the next step needs."""
        return {
            "settings": self._settings(),
            "step": self.step,
            "reward_values": None if self.reward_values is None else list(self.reward_values),
            "predictor": self.predictor.state_dict(),
            "guard": self._guard.state_dict(),
            "outage": self._outage.state_dict(),
            "scores": self._scores.state_dict(),
            "visit_ids": list(self._visits),
            "visits": np.array(list(self._visits.values()), dtype=np.int64),
            "observed": list(self._observed),
            **({"model": self.model.state_dict()} if hasattr(self.model, "state_dict") else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state_dict()``; the sequence of plans then continues bit for bit.

        Raises:
            CheckpointError: the state is of other settings.
        """
        if state["settings"] != self._settings():
            differ = {
                name: (state["settings"].get(name), value)
                for name, value in self._settings().items()
                if state["settings"].get(name) != value
            }
            raise CheckpointError(
                "the checkpoint's settings must be the allocator's, but (saved, now) differ in "
                + ", ".join(f"{name}: {pair}" for name, pair in differ.items())
            )
        self.restored = _restore_predictor(self.predictor, state["predictor"])
        self.step = int(state["step"])
        values = state["reward_values"]
        self.reward_values = None if values is None else (float(values[0]), float(values[1]))
        self._guard.load_state_dict(state["guard"])
        self._outage.load_state_dict(state["outage"])
        self._scores.load_state_dict(state["scores"])
        if hasattr(self.model, "load_state_dict"):
            self.model.load_state_dict(state["model"])
        self._visits = dict(zip(state["visit_ids"], state["visits"].tolist(), strict=True))
        self._observed = dict.fromkeys(state["observed"])
        self._metrics, self._history = {}, []

    def _model_of(self, ids: tuple[PromptId, ...]) -> VarianceModel:
        """The variance model for these prompts: learned models know prompts by name, formulas do not."""
        bind = getattr(self.model, "for_prompts", None)
        bound: VarianceModel = self.model if bind is None else bind(ids)
        return bound

    def _settings(self) -> dict[str, Any]:
        return {
            "predictor": type(self.predictor).__name__,
            "model": self.model.name,
            "policy": self.policy.name,
            "min_group_size": self.min_group_size,
            "max_group_size": self.max_group_size,
        }

    def _check(self, plan: Plan) -> str:
        key = plan.key
        if key in self._observed:
            raise PlanError(f"a plan must be observed once, but the plan of step {plan.step} was observed before")
        if plan.step > self.step:
            raise PlanError(
                f"a plan must come from this allocator's past, but it is of step {plan.step}; step {self.step} is due"
            )
        return key

    def _learn_binary(self, plan: Plan, read: Rewards) -> bool:
        values = self.reward_values or detect_values(read)
        k = successes(read, values or (0.0, 1.0))
        n = read.counts.astype(np.float64)
        # nothing above this line changes state, so a refused reward leaves the allocator as it was
        self.reward_values = values
        if self._quarantine and self._outage.update(plan.prediction, k, n):
            return True
        self._scores.update(plan.prediction.mean, k, n)
        with np.errstate(divide="ignore", invalid="ignore"):
            a_hat = np.where(n > 1, k * (n - k) / (n * (n - 1)), np.nan)
        self._watch(plan, a_hat, bernoulli_noise(k, n))
        order = list(dict.fromkeys(plan.prompt_ids))
        if len(order) == len(plan):
            self.predictor.observe(plan.prompt_ids, k, n)
        else:  # a prompt that occurs twice has two groups and one history
            where = {prompt_id: i for i, prompt_id in enumerate(order)}
            rows = np.array([where[prompt_id] for prompt_id in plan.prompt_ids])
            self.predictor.observe(order, np.bincount(rows, k), np.bincount(rows, n))
        return False

    def _learn_real(self, plan: Plan, read: Rewards) -> bool:
        self._watch(plan, read.variances)
        observe_rewards = self.predictor.observe_rewards  # type: ignore[attr-defined]
        observe_rewards(plan.prompt_ids, read.means, read.variances, read.counts)
        return False

    def _watch(self, plan: Plan, a_hat: FloatArray, noise: FloatArray | None = None) -> None:
        # models whose variance is no product of a weight and f(n) are watched by RLOO's factor
        factor = getattr(self.model, "factor", None) or (lambda n: 1 / (n - 1))
        held = self.guard_holding
        with np.errstate(divide="ignore", invalid="ignore"):
            self._guard.update(a_hat, plan.adaptive_sizes, plan.uniform_sizes, factor, noise)
        if self._guarded and self._guard.holding != held:
            state = self._guard.state()
            what = "falling back to uniform groups" if self._guard.holding else "allocating by the policy again"
            logger.warning(
                "step %d: %s; realised variance ratio %.3f +- %.3f", self.step, what, state.ratio, state.standard_error
            )

    def _seen(self, read: Rewards, quarantined: bool) -> dict[str, float]:
        present = read.counts > 0
        skipped = int(np.count_nonzero(~present))
        if skipped:
            logger.warning("step %d: %d prompts had no reward at all and were skipped", self.step - 1, skipped)
        if quarantined:
            logger.warning("step %d: rewards collapsed for many prompts at once; not learnt", self.step - 1)
        guard = self._guard.state()
        live = np.nan_to_num(read.variances) > 0
        found = {
            "dead_groups_seen": float(np.count_nonzero(present & ~live)),
            "missing_rewards": float(read.missing),
            "skipped_prompts": float(skipped),
            "quarantined": float(quarantined),
            "realised_variance_ratio": guard.ratio,
            **self._scores.metrics(),
            **self.predictor.metrics(),
            **(self.model.metrics() if hasattr(self.model, "metrics") else {}),
        }
        return {f"viprl/{name}": float(value) for name, value in found.items()}


def _restore_predictor(predictor: Predictor, state: dict[str, Any]) -> RestoreReport | None:
    merge = getattr(predictor, "merge_state", None)
    if merge is None:
        predictor.load_state_dict(state)
        return None
    report = RestoreReport(**{name: tuple(ids) for name, ids in merge(state).items()})
    if report.new or report.gone:
        logger.warning(
            "the prompt set changed since the checkpoint: %d new, %d gone, %d kept",
            len(report.new), len(report.gone), len(report.kept),
        )  # fmt: skip
    return report
