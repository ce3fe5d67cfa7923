"""THE statistic of a group of rewards: what advantages, the guard, metrics and histories all read.

Notation: C rollouts (rows) of the step, B groups, n_q the rewards present in group q.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from viprl._arrays import BoolArray, FloatArray, IntArray
from viprl.errors import InvalidInputError

# Rewards travel through trainers as float32. Spreads below a few of its rounding steps are not differences between
# rollouts; dividing them by a standard deviation would turn rounding into a signal.
SAME_REWARD = 4 * float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class GroupMoments:
    """Per-group statistics of the rewards that are present.

    Attributes:
        count: (B,) rewards present.
        mean: (B,) their mean; NaN for an empty group.
        variance: (B,) their variance with ddof 1, exactly 0 for a constant group; NaN where count < 2.
        noise: (B,) unbiased estimate of Var(variance) given the prompt, from four rewards on (it may be negative);
            below that its upper bound in the mean, variance^2; NaN where count < 2.
        constant: (B,) True where at least one reward is present and all present ones are equal (to float32 rounding).
    """

    count: IntArray
    mean: FloatArray
    variance: FloatArray
    noise: FloatArray
    constant: BoolArray


def group_moments(rewards: ArrayLike, rows: ArrayLike, num_groups: int) -> GroupMoments:
    """Count, mean and variance of each group.

    Args:
        rewards: (C,) with NaN for missing rewards.
        rows: (C,) group of every rollout, in [0, num_groups), in any order.
        num_groups: B.
    """
    values = np.asarray(rewards, dtype=np.float64)
    index = np.asarray(rows, dtype=np.int64)
    if values.ndim != 1 or values.shape != index.shape:
        raise InvalidInputError(f"rewards and rows must be (C,) alike, but got {values.shape} and {index.shape}")
    if len(index) and not (0 <= index.min() and index.max() < num_groups):
        raise InvalidInputError(f"0 <= rows < {num_groups} must hold, but got [{index.min()}, {index.max()}]")
    present = ~np.isnan(values)
    r, q = values[present], index[present]
    count: IntArray = np.bincount(q, minlength=num_groups).astype(np.int64)
    low, high = np.full(num_groups, np.inf), np.full(num_groups, -np.inf)
    np.minimum.at(low, q, r)
    np.maximum.at(high, q, r)
    seen = count > 0
    constant = np.zeros(num_groups, bool)
    constant[seen] = high[seen] - low[seen] <= SAME_REWARD * np.maximum(abs(high[seen]), abs(low[seen]))
    # Sums are taken from the group's smallest reward, so a large common offset costs no digits.
    base = np.where(seen, low, 0.0)
    mean = np.full(num_groups, np.nan)
    mean[seen] = base[seen] + np.bincount(q, r - base[q], num_groups)[seen] / count[seen]
    mean = np.where(constant, base, mean)
    squares = np.where(constant[q], 0.0, r - mean[q]) ** 2
    second, fourth = (np.asarray(np.bincount(q, s, num_groups), dtype=np.float64) for s in (squares, squares**2))
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.where(count > 1, second / (count - 1), np.nan)
    noise = _noise(count, np.asarray(variance, dtype=np.float64), second, fourth)
    return GroupMoments(count, mean, variance, noise, constant)


def _noise(count: IntArray, variance: FloatArray, second: FloatArray, fourth: FloatArray) -> FloatArray:
    """Var(s^2) = E[s^4] - sigma^4, and sigma^4 has the unbiased estimate (the mean over all quadruples of rewards of
    (x1 - x2)^2 (x3 - x4)^2 / 4) ((n^2 - 3 n + 3) S_2^2 - n (n-1) S_4) / (n (n-1) (n-2) (n-3)), S_j the sum of the j-th
    powers of the deviations. For k successes in n it is k (k-1) (n-k) (n-k-1) / (n (n-1) (n-2) (n-3))."""
    n = count.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        square = ((n**2 - 3 * n + 3) * second**2 - n * (n - 1) * fourth) / (n * (n - 1) * (n - 2) * (n - 3))
    return np.asarray(variance**2 - np.where(count >= 4, square, 0.0), dtype=np.float64)
