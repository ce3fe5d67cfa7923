"""Outages: rewards that collapse to zero for many prompts at once say something about the verifier, not the policy.

The detector decides about a whole step, for everything that learns (predictor, scores, guard, learned variance) and
whatever the predictor. How far a predictor believes single counts of a step that passed is its own affair; see
``viprl.prediction.trust``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from viprl._arrays import FloatArray
from viprl.prediction.base import Prediction


class OutageDetector:
    """Quarantines steps in which prompts that should not fail all fail together.

    A prompt with history *should not fail* when the prediction gives a group without any success less than
    ``surprise``. The step is an outage when at least half of them failed and the chance of so many (binomial tail) is
    below ``significance``, where each fails with probability ``surprise`` or twice the share that failed in past
    steps, whichever is larger: a predictor that is always this wrong must go on learning. So the first step that has
    such prompts is never an outage. Prompts without history do not count: a run may start with nothing but zeros.

    A collapse that lasts longer than ``patience`` steps in a row is accepted as real and learnt.
    """

    def __init__(
        self, surprise: float = 0.05, significance: float = 1e-6, patience: int = 64, keep: float = 0.9
    ) -> None:
        self.surprise, self.significance, self.patience, self.keep = surprise, significance, patience, keep
        self.streak = 0
        self._past = np.zeros(2)  # discounted: prompts that should not fail, those that failed

    def update(self, prediction: Prediction, successes: FloatArray, rollouts: FloatArray) -> bool:
        """True where this step must not teach the predictor.

        Args:
            prediction: made before the step, for its B prompts.
            successes, rollouts: (B,) of the step.
        """
        steady, failed = self._steady(prediction, successes, rollouts)
        outage = self._unlikely(steady, failed)
        if outage and self.streak < self.patience:
            self.streak += 1
            return True
        if not outage:
            self.streak = 0
        if steady:
            self._past = self.keep * self._past + np.array([steady, failed], dtype=np.float64)
        return False

    def _steady(self, prediction: Prediction, successes: FloatArray, rollouts: FloatArray) -> tuple[int, int]:
        """How many prompts should not fail, and how many of them did."""
        group = np.maximum(rollouts, 1)
        # E[(1 - p)^n] >= (1 - mean)^n (Jensen), so no other prompt can be below `surprise`
        possible = (rollouts > 0) & ~prediction.cold & ((1 - prediction.mean) ** group < self.surprise)
        if not possible.any():
            return 0, 0
        _, dead = prediction.alike(rollouts)
        steady = np.flatnonzero(possible & (dead < self.surprise))
        return len(steady), int(np.count_nonzero(successes[steady] == 0))

    def _unlikely(self, steady: int, failed: int) -> bool:
        if failed == 0 or 2 * failed < steady or self._past[0] == 0:
            return False
        rate = min(max(self.surprise, 2 * self._past[1] / self._past[0]), 1.0)
        return bool(special.bdtrc(failed - 1, steady, rate) < self.significance)

    def state_dict(self) -> dict[str, Any]:
        """What the next step needs, as plain numbers and arrays."""
        return {"streak": self.streak, "past": self._past}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a ``state_dict``."""
        self.streak, self._past = int(state["streak"]), np.array(state["past"], float)
