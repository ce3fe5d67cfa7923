"""Outages: rewards that collapse to zero for many prompts at once say something about the verifier, not the policy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from viprl.prediction.base import Prediction

FloatArray = NDArray[np.float64]


class OutageDetector:
    """Quarantines steps in which prompts that should not fail all fail together.

    A prompt with history *should not fail* when the prediction gives a group without any success less than
    ``surprise``. Under a calibrated prediction at most that share of them does. The step is an outage when at least
    half of them failed and the chance of so many (binomial tail) is below ``significance``. Prompts without history
    are never counted: a run may well start with nothing but zeros.

    A collapse that lasts longer than ``patience`` steps in a row is accepted as real and learnt.
    """

    def __init__(self, surprise: float = 0.05, significance: float = 1e-6, patience: int = 64) -> None:
        self.surprise, self.significance, self.patience = surprise, significance, patience
        self.streak = 0

    def update(self, prediction: Prediction, successes: FloatArray, rollouts: FloatArray) -> bool:
        """True where this step must not teach the predictor.

        Args:
            prediction: made before the step, for its B prompts.
            successes, rollouts: (B,) of the step.
        """
        outage = self._collapsed(prediction, successes, rollouts)
        if outage and self.streak < self.patience:
            self.streak += 1
            return True
        if not outage:
            self.streak = 0
        return False

    def _collapsed(self, prediction: Prediction, successes: FloatArray, rollouts: FloatArray) -> bool:
        group = np.maximum(rollouts, 1)
        # E[(1 - p)^n] >= (1 - mean)^n (Jensen), so no other prompt can be below `surprise`
        possible = (rollouts > 0) & ~prediction.cold & ((1 - prediction.mean) ** group < self.surprise)
        candidates = np.flatnonzero(possible)
        # f failures have a binomial tail of at least surprise^f
        if self.surprise ** np.count_nonzero(successes[candidates] == 0) >= self.significance:
            return False
        n = rollouts[candidates][:, None]
        dead = prediction[candidates].expect(lambda p: (1 - p) ** n)
        steady = candidates[dead < self.surprise]
        failed = int(np.count_nonzero(successes[steady] == 0))
        if len(steady) == 0 or 2 * failed < len(steady):
            return False
        return bool(stats.binom.sf(failed - 1, len(steady), self.surprise) < self.significance)

    def state_dict(self) -> dict[str, Any]:
        return {"streak": self.streak}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.streak = int(state["streak"])
