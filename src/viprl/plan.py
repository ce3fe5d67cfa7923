"""A plan: how many rollouts each prompt of a batch gets, and why.

Notation: B prompts in the batch, C = sum of the group sizes, n_q the size of group q.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from viprl._arrays import FloatArray, IntArray
from viprl.advantages import group_advantages
from viprl.allocation import Policy, Uniform
from viprl.errors import InvalidInputError
from viprl.prediction.base import Prediction, PromptId
from viprl.selecting import LeftOut, Selected
from viprl.variance import VarianceModel


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """Group sizes for one step with the predictions behind them. Iterating yields ``(prompt_id, group_size)``.

    Attributes:
        prompt_ids: the batch, in order; an id may occur twice.
        group_sizes: (B,) rollouts to sample, with sum ``budget``.
        prediction: of the B prompts, made before the step.
        budget: C.
        step: number of steps that the allocator had observed.
        policy, model: names of the policy and of the variance model.
        estimator, epsilon: the advantages whose variance the model gives; see ``advantages``.
        adaptive_sizes: (B,) what the policy wanted; differs from ``group_sizes`` only while the guard holds.
        uniform_sizes: (B,) equal group sizes for the same budget and bounds.
        variance, adaptive_variance, uniform_variance: (B,) predicted gradient variances under ``group_sizes``,
            ``adaptive_sizes`` and ``uniform_sizes``.
        next_variance: (B,) predicted variances with one rollout more.
        min_group_size, max_group_size: (B,) bounds.
        guard_holding: True where the guard replaced the policy's sizes by uniform ones.
        selected: the candidates and why each was kept or left out; None where all of the batch got rollouts.
        seconds: wall-clock time that the allocation took.
    """

    prompt_ids: tuple[PromptId, ...]
    group_sizes: IntArray
    prediction: Prediction
    budget: int
    step: int
    policy: str
    model: str
    estimator: str
    epsilon: float | None
    adaptive_sizes: IntArray
    uniform_sizes: IntArray
    variance: FloatArray
    adaptive_variance: FloatArray
    uniform_variance: FloatArray
    next_variance: FloatArray
    min_group_size: IntArray
    max_group_size: IntArray
    guard_holding: bool = False
    selected: Selected | None = None
    seconds: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    @classmethod
    def of(
        cls,
        ids: tuple[PromptId, ...],
        prediction: Prediction,
        budget: int,
        *,
        policy: Policy,
        model: VarianceModel,
        bounds: tuple[int, int],
        step: int,
        held: bool,
        scale: ArrayLike | None,
        selected: Selected | None,
        start: float,
    ) -> Plan:
        """The policy's plan for a batch (uniform groups while it is ``held``); ``start`` is when its making began."""
        low, high = bounds
        bound = model.bind(ids)
        limits = {"min_group_size": low, "max_group_size": high}
        sizes = [
            rule.allocate(prediction, model=bound, budget=budget, scale=scale, **limits) for rule in (policy, Uniform())
        ]
        adaptive, uniform = (np.asarray(n, dtype=np.int64) for n in sizes)
        used = uniform if held else adaptive
        factor = 1.0 if scale is None else np.asarray(scale, dtype=np.float64)
        variance, uniform_variance, next_variance = (
            factor * bound.variance(prediction, n) for n in (used, uniform, used + 1)
        )
        return cls(
            prompt_ids=ids,
            group_sizes=used,
            prediction=prediction,
            budget=budget,
            step=step,
            policy=policy.name,
            model=model.name,
            estimator=model.estimator,
            epsilon=model.epsilon,
            adaptive_sizes=adaptive.copy(),
            uniform_sizes=uniform.copy(),
            variance=variance,
            adaptive_variance=factor * bound.variance(prediction, adaptive) if held else variance,
            uniform_variance=uniform_variance,
            next_variance=next_variance,
            min_group_size=np.full(len(ids), low),
            max_group_size=np.full(len(ids), high),
            guard_holding=held,
            selected=selected,
            seconds=time.perf_counter() - start,
        )

    def __len__(self) -> int:
        return len(self.prompt_ids)

    def __iter__(self) -> Iterator[tuple[PromptId, int]]:
        return iter(zip(self.prompt_ids, self.group_sizes.tolist(), strict=True))

    def __repr__(self) -> str:
        sizes = self.group_sizes
        held = "uniform groups, held by the guard" if self.guard_holding else f"{self.policy} on {self.model}"
        return (
            f"Plan(step {self.step}: {self.budget} rollouts for {len(self)} prompts, groups of {sizes.min()} to "
            f"{sizes.max()}, {held}, predicted variance {self.variance_ratio:.3f} of uniform's)"
        )

    @property
    def key(self) -> str:
        """Identifies the plan: a digest of the step, the prompt ids and the group sizes."""
        digest = hashlib.blake2b(repr((self.step, self.prompt_ids)).encode(), digest_size=16)
        digest.update(np.ascontiguousarray(self.group_sizes, dtype="<i8").tobytes())
        return digest.hexdigest()

    def rows(self) -> IntArray:
        """(C,) position in the batch of the prompt of every rollout, in plan order."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.group_sizes)

    def advantages(self, rewards: Any, *, prompt_weighting: str = "equal") -> FloatArray:
        """(C,) advantages of the plan's rollouts by its own estimator, in plan order; see ``viprl.group_advantages``.

        Args:
            rewards: flat (C,) or ragged, in plan order; None and NaN are missing and get 0.
            prompt_weighting: "equal" carries the factor (C/B)/n_q, so that every prompt weighs the same in a loss that
                averages over rollouts, which is the objective whose variance the plan minimises; "rollout" leaves it
                out. Exact for RLOO: Dr. GRPO's expected gradient of a prompt keeps its own factor (n_q - 1)/n_q.
                ``prompt_weights`` multiply either.

        Raises:
            InvalidInputError: rewards that do not fit, or a variance model whose estimator has no advantages here.
        """
        advantages = group_advantages(
            rewards, self.group_sizes, self.estimator, epsilon=self.epsilon, prompt_weighting=prompt_weighting
        )
        return advantages * np.repeat(self.prompt_weights, self.group_sizes)

    @property
    def kept(self) -> IntArray:
        """(B,) positions of the plan's prompts among the candidates, ascending."""
        return np.arange(len(self), dtype=np.int64) if self.selected is None else self.selected.kept

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The candidates that got no rollouts, as ``(prompt_id, reason)``."""
        return () if self.selected is None else self.selected.left_out

    @property
    def prompt_weights(self) -> FloatArray:
        """(B,) what the selection multiplies each prompt's advantages by; all 1 but for ``selection="unbiased"``."""
        return np.ones(len(self)) if self.selected is None else self.selected.weight

    @property
    def variance_ratio(self) -> float:
        """Predicted gradient variance of the batch, relative to uniform groups (1.0 where both are zero)."""
        return _ratio(self.variance, self.uniform_variance)

    @property
    def policy_variance_ratio(self) -> float:
        """The same for the policy's groups, also where the guard holds them back."""
        return _ratio(self.adaptive_variance, self.uniform_variance)

    def dead_groups(self) -> float:
        """Expected number of groups in which all rollouts get the same reward, so that nothing is learnt."""
        all_succeed, all_fail = self.prediction.alike(self.group_sizes)
        return float((all_succeed + all_fail).sum())

    def metrics(self) -> dict[str, float]:
        """What is known before the rollouts, for a logger; keys start with ``viprl/``."""
        return {
            "viprl/variance_ratio": self.variance_ratio,
            "viprl/policy_variance_ratio": self.policy_variance_ratio,
            "viprl/policy_used": float(not self.guard_holding),
            "viprl/group_size_min": float(self.group_sizes.min()),
            "viprl/group_size_max": float(self.group_sizes.max()),
            "viprl/group_size_std": float(self.group_sizes.std()),
            "viprl/cold_share": float(self.prediction.cold.mean()),
            "viprl/dead_groups_predicted": self.dead_groups(),
            "viprl/guard": float(self.guard_holding),
            **({} if self.selected is None else self.selected.metrics()),
        }

    def explain(self, prompt_id: PromptId) -> str:
        """Why this prompt got its rollouts, or none, in words and numbers; one paragraph per occurrence.

        Raises:
            InvalidInputError: the prompt is neither in the plan nor among its candidates.
        """
        positions = [q for q, other in enumerate(self.prompt_ids) if other == prompt_id]
        if not positions and self.selected is not None and prompt_id in self.selected.candidate_ids:
            return self.selected.explain(self.selected.candidate_ids.index(prompt_id))
        if not positions:
            raise InvalidInputError(f"the prompt must be in the plan, but {prompt_id!r} is not among its {len(self)}")
        return "\n".join(self._explain(q) for q in positions)

    def to_rows(self) -> list[dict[str, Any]]:
        """One dict per prompt: what ``explain`` says, as numbers."""
        gain = self.variance - self.next_variance
        return [
            {
                "prompt_id": prompt_id,
                "group_size": int(self.group_sizes[q]),
                "uniform_group_size": int(self.uniform_sizes[q]),
                "predicted_mean": float(self.prediction.mean[q]),
                "predicted_bernoulli_variance": float(self.prediction.bernoulli_variance[q]),
                "cold": bool(self.prediction.cold[q]),
                "variance": float(self.variance[q]),
                "uniform_variance": float(self.uniform_variance[q]),
                "next_rollout_gain": float(gain[q]),
            }
            for q, prompt_id in enumerate(self.prompt_ids)
        ]

    def _explain(self, q: int) -> str:
        spread = self.prediction.reward_variance
        rank = int((spread > spread[q]).sum()) + 1
        n = int(self.group_sizes[q])
        history = "no rollouts of its own seen yet" if self.prediction.cold[q] else "with history of its own"
        kept = "" if self.selected is None else self.selected.explain(int(self.kept[q])) + " "
        text = kept + (
            f"{self.prompt_ids[q]}: {n} rollouts (uniform: {self.uniform_sizes[q]}; bounds "
            f"[{self.min_group_size[q]}, {self.max_group_size[q]}]). Predicted success probability "
            f"{self.prediction.mean[q]:.3f}, reward variance {spread[q]:.4f}, rank {rank} of {len(self)} "
            f"(batch mean {spread.mean():.4f}), {history}. "
        )
        if self.guard_holding:
            wanted = int(self.adaptive_sizes[q])
            return text + f"The guard holds uniform groups; {self.policy} would give {wanted}."
        if n == self.max_group_size[q]:
            return text + "The upper bound stops it."
        gain = float(self.variance[q] - self.next_variance[q])
        others = np.delete(self.variance - self.next_variance, q)
        best = f"; the largest such gain elsewhere is {others.max():.3g}" if len(others) else ""
        bound = " It is held up by the lower bound." if n == self.min_group_size[q] else ""
        return text + f"One rollout more would lower its predicted gradient variance by {gain:.3g}{best}.{bound}"


def _ratio(variance: FloatArray, uniform: FloatArray) -> float:
    total = float(uniform.sum())
    return float(variance.sum()) / total if total > 0 else 1.0
