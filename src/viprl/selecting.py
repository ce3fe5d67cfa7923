"""Selection joined to predictions: the candidates of a step -> which of them are kept, and why.

Notation: K candidates, m kept ones, C rollouts of the step, L <= n_q <= U the bounds of a group's size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from viprl._arrays import BoolArray, FloatArray, IntArray
from viprl.errors import InvalidInputError
from viprl.prediction.base import Prediction, PromptId
from viprl.selection import (
    CHOSEN,
    LEFT,
    REASONS,
    Candidates,
    Coverage,
    Learnability,
    SaturatingValue,
    SelectionPolicy,
    UniformSelection,
)

KEPT_FOR = ("", "value", "exploration", "rest")  # by ``REASONS``
BETWEEN = 1.0  # noise between prompts in units of that between the rollouts of one, where it is not measured


class LeftOut(NamedTuple):
    """A candidate without rollouts, and why."""

    prompt_id: PromptId
    reason: str


@dataclass(frozen=True, eq=False, repr=False)
class Selected:
    """Which candidates of a step were kept.

    Attributes:
        candidate_ids: the K candidates, in order.
        kept: (m,) positions of the kept ones, ascending.
        reason: (K,) index into ``viprl.selection.REASONS``.
        weight: (m,) what a kept prompt's gradient is multiplied by; all 1 but for ``unbiased``, where it is 1 in the
            mean over the draws.
        break_price: (K,) value a rollout at the candidate's best group size.
        price: value of the step's last rollout under the policy's decision.
        waited: (K,) passes since each candidate last got rollouts (since it was first met, before that).
        mean, bernoulli_variance: (K,) predicted E[p] and E[p(1-p)].
        policy: name of the selection policy that was asked.
        paused: True where uniform selection took its place: the guard holds, or training had narrowed to few prompts.
        visited, effective: share of the prompts met that were kept within the last pass; effective number of prompts
            of the last passes; both before the step.
    """

    candidate_ids: tuple[PromptId, ...]
    kept: IntArray
    reason: IntArray
    weight: FloatArray
    break_price: FloatArray
    price: float
    waited: FloatArray
    mean: FloatArray
    bernoulli_variance: FloatArray
    policy: str
    paused: bool
    visited: float
    effective: float

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def __len__(self) -> int:
        return len(self.candidate_ids)

    @property
    def kept_flags(self) -> BoolArray:
        """(K,) True where the candidate was kept."""
        return np.asarray(self.reason != LEFT)

    @property
    def kept_for(self) -> list[str]:
        """(m,) why each was kept, in a word; "uniform" while selection is paused."""
        return ["uniform" if self.paused else KEPT_FOR[r] for r in self.reason[self.kept].tolist()]

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The candidates without rollouts, in order, with reasons in words."""
        rows = np.flatnonzero(self.reason == LEFT)
        return tuple(LeftOut(self.candidate_ids[int(q)], self._why_not(int(q))) for q in rows)

    def explain(self, q: int) -> str:
        """Why candidate ``q`` was kept or left out."""
        belief = (
            f"Predicted success probability {self.mean[q]:.3f}, E[p(1-p)] {self.bernoulli_variance[q]:.4f}; last "
            f"rollouts {self.waited[q]:.2f} passes ago or more."
        )
        if self.reason[q] == LEFT:
            return f"{self.candidate_ids[q]}: left out, {self._why_not(q)}. {belief}"
        rank = int((self.break_price > self.break_price[q]).sum()) + 1
        how = "drawn uniformly, as selection is paused" if self.paused else REASONS[self.reason[q]]
        return f"Kept out of {len(self)} candidates ({how}; rank {rank} by value a rollout, {self.break_price[q]:.3g})."

    def metrics(self) -> dict[str, float]:
        """Numbers for a logger; keys start with ``viprl/``."""
        found: dict[str, float] = {
            "candidates": len(self),
            "kept": len(self.kept),
            "explored": int(np.count_nonzero(self.kept_flags & (self.reason != CHOSEN))),
            "price": self.price,
            "selection_paused": self.paused,
            "visited_share": self.visited,
            "effective_prompts": self.effective,
        }
        return {f"viprl/{name}": float(value) for name, value in found.items()}

    def _why_not(self, q: int) -> str:
        if self.paused:
            return "as selection is paused and the uniform draw passed it over"
        worth = f"worth {self.break_price[q]:.3g} a rollout at its best group size"
        if self.break_price[q] < self.price:
            return f"{worth}, below the price of {self.price:.3g}"
        return f"{worth}, no less than the price of {self.price:.3g}, but others were drawn"


class Selector:
    """A selection policy and what it must remember: the coverage of the prompts.

    Args:
        policy: how to choose; ``viprl.selection.Learnability()`` by default.
        candidates: how many prompts are offered for each that a step without selection would have.

    Raises:
        InvalidInputError: ``candidates`` below 1.
    """

    def __init__(self, policy: SelectionPolicy | None = None, *, candidates: int = 4) -> None:
        if not candidates >= 1:
            raise InvalidInputError(f"candidates >= 1 must hold, but got {candidates}")
        self.policy: SelectionPolicy = Learnability() if policy is None else policy
        self.candidates = candidates
        self.coverage = Coverage()

    def choose(
        self,
        ids: Sequence[PromptId],
        prediction: Prediction,
        budget: int,
        bounds: tuple[int, int],
        *,
        step: int,
        prompts: int | None,
        nominal: int | None,
        paused: bool,
    ) -> Selected:
        """Pure; the draws are those of ``step``.

        Args:
            prediction: of the K candidates.
            budget, bounds: C, (L, U).
            prompts: m where it is given; None leaves it to the policy.
            nominal: prompts that the step would have without selection; None is K / ``candidates``.
            paused: choose uniformly.

        Raises:
            InfeasibleBudgetError: no number of candidates (or not ``prompts`` of them) fits the budget and the bounds.
        """
        paused = paused or self.coverage.narrow
        policy = UniformSelection() if paused else self.policy
        waited = self.coverage.waited(ids)
        nominal = max(1, round(len(ids) / self.candidates)) if nominal is None else nominal
        candidates = Candidates(_value(prediction), budget, *bounds, nominal, waited, prompts)
        selection = policy.select(candidates, np.random.default_rng([0, step]))
        kept = np.flatnonzero(selection.sizes)
        return Selected(
            candidate_ids=tuple(ids),
            kept=kept,
            reason=selection.reason,
            weight=selection.weight[kept],
            break_price=selection.break_price,
            price=selection.price,
            waited=waited,
            mean=prediction.mean,
            bernoulli_variance=prediction.bernoulli_variance,
            policy=self.policy.name,
            paused=paused and not isinstance(self.policy, UniformSelection),
            visited=self.coverage.visited_share(),
            effective=self.coverage.effective(),
        )

    def learn(self, selected: Selected) -> None:
        """Take in an observed step."""
        self.coverage.learn(selected.candidate_ids, selected.kept_flags.tolist())

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next choice needs beside the step."""
        return self.coverage.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict()``."""
        self.coverage.load_state_dict(state)


def _value(prediction: Prediction) -> SaturatingValue:
    spread = prediction.reward_variance
    if spread is prediction.bernoulli_variance:
        return SaturatingValue.of(spread, prediction.bernoulli_square, BETWEEN)
    # real rewards know no p(1-p) <= 1/4: the widest candidate takes its place
    share = np.maximum(spread / max(float(spread.max(initial=0.0)), 1e-300), 1e-9)
    return SaturatingValue(spread, BETWEEN * share / 4.0)
