"""One step's gradient norms by group and outcome. Notation: B groups, C rollouts, z = ||H||^2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from viprl._arrays import FloatArray

if TYPE_CHECKING:
    from viprl.feedback.rewards import Rewards


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


def unbiased_constants(rewards: Rewards, z: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(B,) unbiased V1 = E[(R - E R)^2 z] and V2 = E[(R - R')^2 (z + z')] / 4 of each group, whatever the rewards.

    With d_j = R_j - mean(R) and s^2 the sample variance, the mean over j of z_j (n d_j^2 - s^2) / (n - 2) estimates V1
    (it is the mean of z_j (R_j - R_k)(R_j - R_l) over triples), and that of z_j (n d_j^2 + (n-1) s^2) / (n - 1) twice
    V2. For rewards in {0, 1} they are the constants of ``outcome_moments``. NaN below three rewards, and where a group
    with unequal rewards has a reward without a norm.
    """
    rows, n, s2 = rewards.rows, rewards.counts.astype(np.float64), rewards.variances
    d2 = (rewards.flat - rewards.means[rows]) ** 2
    here = ~np.isnan(rewards.flat)
    own_n, own_s2 = n[rows], s2[rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = (z * (own_n * d2 - own_s2) / (own_n - 2), z * (own_n * d2 + (own_n - 1) * own_s2) / (2 * (own_n - 1)))
        first, second = (np.bincount(rows[here], term[here], len(n)) / n for term in terms)
    dead = rewards.constant & (n >= 3)
    enough = n >= 3
    return tuple(np.where(dead, 0.0, np.where(enough, x, np.nan)) for x in (first, second))  # type: ignore[return-value]
