"""One step's gradient norms by group and outcome. Notation: B groups, C rollouts, z = ||H||^2."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from viprl._arrays import FloatArray


class GroupSummary:
    """One step's rollouts by group and outcome (failure, success).

    Attributes:
        present, successes: (B,) rewards present, successes among them.
        counts, means: (B, 2) rollouts with a known norm, and their mean z.
        weights: (B, 2) effective number of observations behind ``means``.
    """

    def __init__(self, present: FloatArray, successes: FloatArray, counts: FloatArray, means: FloatArray) -> None:
        self.present, self.successes, self.counts, self.means = present, successes, counts, means
        # rollouts of one prompt with one outcome are often the same text, so together they count at most twice
        self.weights = counts / (1 + 0.5 * np.maximum(counts - 1, 0))

    @classmethod
    def of(cls, sizes: NDArray[np.int64], rewards: FloatArray, z: FloatArray) -> GroupSummary:
        batch = len(sizes)
        owner = np.repeat(np.arange(batch), sizes)
        here = ~np.isnan(rewards)
        outcome = np.where(here, rewards, 0).astype(np.int64)
        known = here & ~np.isnan(z)
        cell = owner[known] * 2 + outcome[known]
        counts = np.bincount(cell, minlength=2 * batch).reshape(batch, 2).astype(np.float64)
        sums = np.bincount(cell, z[known], minlength=2 * batch).reshape(batch, 2)
        present = np.bincount(owner[here], minlength=batch).astype(np.float64)
        successes = np.bincount(owner[here], rewards[here], minlength=batch).astype(np.float64)
        return cls(present, successes, counts, sums / np.maximum(counts, 1))

    def unbiased_v1(self) -> FloatArray:
        """(B,) unbiased p (1-p)^2 s+ + p^2 (1-p) s- of each group; NaN below three rollouts or without norms."""
        n, k = self.present, self.successes
        with np.errstate(divide="ignore", invalid="ignore"):
            triples = n * (n - 1) * (n - 2)
            value = k * (n - k) * ((n - k - 1) * self.means[:, 1] + (k - 1) * self.means[:, 0]) / triples
        mixed = (k > 0) & (k < n)
        unknown = (n < 3) | (mixed & (self.counts == 0).any(axis=1))
        return np.asarray(np.where(unknown, np.nan, np.where(mixed, value, 0.0)), dtype=np.float64)
