"""Scores of past predictions, each beside what a constant would have scored."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from viprl._arrays import FloatArray

CLIP = 1e-3  # predictions are clipped to [CLIP, 1 - CLIP] in the log loss, as usual for plug-in predictors
BINS = 10


class PredictionScores:
    """Discounted log loss, Brier score and calibration error, per rollout.

    The constant is the discounted mean success rate of the steps before; the calibration error is the weighted mean
    over ten equal-width bins of |mean prediction - mean success rate|. A step that lies t steps back weighs
    ``keep**t``.
    """

    def __init__(self, keep: float = 0.9) -> None:
        self.keep = keep
        self._weight = 0.0
        self._sums = np.zeros(4)  # log loss, the constant's log loss, Brier, the constant's Brier
        self._bins = np.zeros((3, BINS))  # rollouts, predicted successes, successes
        self._rate = np.array([0.5, 1.0])  # discounted successes and rollouts, one prior rollout at 1/2

    def update(self, mean: FloatArray, successes: FloatArray, rollouts: FloatArray) -> None:
        """Score the predictions (B,) made before a step against its counts (B,)."""
        n = np.asarray(rollouts, dtype=np.float64)
        k = np.asarray(successes, dtype=np.float64)
        total = float(n.sum())
        if total == 0:
            return
        constant = np.full_like(mean, self._rate[0] / self._rate[1])
        step = np.array([*_losses(mean, k, n), *_losses(constant, k, n)])[[0, 2, 1, 3]] / total
        self._weight = self.keep * self._weight + 1
        self._sums = self.keep * self._sums + step
        which = np.minimum((mean * BINS).astype(int), BINS - 1)
        counts = [np.bincount(which, w, BINS) for w in (n, mean * n, k)]
        self._bins = self.keep * self._bins + np.stack(counts)
        self._rate = self.keep * self._rate + np.array([k.sum(), total])

    def metrics(self) -> dict[str, float]:
        """log_loss, log_loss_constant, brier, brier_constant, calibration_error; empty before the first step."""
        if self._weight == 0:
            return {}
        names = ("log_loss", "log_loss_constant", "brier", "brier_constant")
        scores = {name: float(value) for name, value in zip(names, self._sums / self._weight, strict=True)}
        rollouts, predicted, seen = self._bins
        scores["calibration_error"] = float(np.abs(predicted - seen).sum() / rollouts.sum())
        return scores

    def reliability(self) -> FloatArray:
        """(3, 10): rollouts, mean prediction and success rate of each bin (NaN where empty)."""
        rollouts, predicted, seen = self._bins
        share = np.where(rollouts > 0, rollouts, np.nan)
        return np.stack([rollouts, predicted / share, seen / share])

    def state_dict(self) -> dict[str, Any]:
        """What the next step needs, as plain numbers and arrays."""
        return {"weight": self._weight, "sums": self._sums, "bins": self._bins, "rate": self._rate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a ``state_dict``."""
        self._weight = float(state["weight"])
        self._sums, self._bins, self._rate = (np.array(state[name], float) for name in ("sums", "bins", "rate"))


def _losses(mean: FloatArray, k: FloatArray, n: FloatArray) -> tuple[float, float]:
    p = np.clip(mean, CLIP, 1 - CLIP)
    log_loss = -(special.xlogy(k, p) + special.xlog1py(n - k, -p)).sum()
    brier = (k * (1 - mean) ** 2 + (n - k) * mean**2).sum()
    return float(log_loss), float(brier)
