"""Each prompt's own factors on the shared curves, shrunk as strongly as past predictions ask for.

r = z / curve is a group's mean squared norm relative to what the curve expects; prompt q's factor for outcome o is

    f = (strength + sum w r) / (strength + sum w)

over its own past groups, recent ones counting more. Whether factors help at all, how strongly to shrink, and whether
success and failure share one factor is decided by the score log f + r / f (the gamma deviance) of predictions made
before each step. Notation: R prompts seen so far, E candidate rules.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viprl._arrays import FloatArray

RULES: tuple[tuple[float, bool], ...] = ((np.inf, False), *((s, j) for s in (1.0, 4.0, 16.0) for j in (False, True)))
"""(strength, one factor for both outcomes)."""
LARGEST_RATIO = 20.0


class PromptFactors:
    """Per-prompt factors for (failure, success). ``keep`` discounts the rules' scores per step."""

    def __init__(self, *, keep: float, keep_visit: float) -> None:
        self.keep, self.keep_visit = keep, keep_visit
        self._rows: dict[Hashable, int] = {}
        self._weight = np.zeros((0, 2))
        self._sum = np.zeros((0, 2))
        self._scores = np.zeros(len(RULES))

    def predict(self, prompt_ids: Sequence[Hashable]) -> FloatArray:
        """(B, 2) factors, an average over the rules by their scores."""
        every = self._candidates(prompt_ids)
        advantage = self._scores - self._scores.min()
        share = np.exp(-advantage)
        share /= share.sum()
        return np.asarray(np.exp(np.einsum("e,ebo->bo", share, np.log(every))), dtype=np.float64)

    def update(
        self,
        prompt_ids: Sequence[Hashable],
        outcome: NDArray[np.int64],
        relative: FloatArray,
        weight: FloatArray,
        dispersion: float,
    ) -> None:
        """Take in one step: O observations of groups, with r clipped to twenty times the expected."""
        r = np.minimum(relative, LARGEST_RATIO)
        every = self._candidates(prompt_ids)[:, np.arange(len(r)), outcome]
        self._scores = self.keep * self._scores + ((np.log(every) + r / every) * weight).sum(axis=1) / dispersion
        rows = self._own_rows(prompt_ids)
        touched = np.unique(rows)
        self._weight[touched] *= self.keep_visit
        self._sum[touched] *= self.keep_visit
        np.add.at(self._weight, (rows, outcome), weight)
        np.add.at(self._sum, (rows, outcome), weight * r)

    def _candidates(self, prompt_ids: Sequence[Hashable]) -> FloatArray:
        """(E, B, 2) factors by each rule."""
        rows = np.array([self._rows.get(i, -1) for i in prompt_ids], dtype=np.int64)
        weight, total = np.zeros((len(rows), 2)), np.zeros((len(rows), 2))
        known = rows >= 0
        weight[known], total[known] = self._weight[rows[known]], self._sum[rows[known]]
        joint_weight, joint_total = (np.repeat(x.sum(axis=1, keepdims=True), 2, axis=1) for x in (weight, total))
        result = np.ones((len(RULES), len(rows), 2))
        for e, (strength, joint) in enumerate(RULES):
            if np.isfinite(strength):
                w, t = (joint_weight, joint_total) if joint else (weight, total)
                result[e] = (strength + t) / (strength + w)
        return result

    def _own_rows(self, prompt_ids: Sequence[Hashable]) -> NDArray[np.int64]:
        for prompt_id in prompt_ids:
            self._rows.setdefault(prompt_id, len(self._rows))
        missing = len(self._rows) - len(self._weight)
        if missing > 0:
            room = np.zeros((max(missing, len(self._weight)), 2))  # doubling keeps the total work linear
            self._weight, self._sum = np.concatenate([self._weight, room]), np.concatenate([self._sum, room])
        return np.array([self._rows[i] for i in prompt_ids], dtype=np.int64)

    def state_dict(self) -> dict[str, Any]:
        used = len(self._rows)
        return {
            "prompt_ids": list(self._rows),
            "weight": self._weight[:used].copy(),
            "sum": self._sum[:used].copy(),
            "scores": self._scores.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rows = {prompt_id: row for row, prompt_id in enumerate(state["prompt_ids"])}
        self._weight = np.array(state["weight"], float).reshape(-1, 2)
        self._sum = np.array(state["sum"], float).reshape(-1, 2)
        self._scores = np.array(state["scores"], float)
