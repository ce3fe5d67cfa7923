"""Ragged rewards of one step, checked and summed per group.

Notation: B groups in the step, C planned rollouts, n (B,) rewards present per group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viprl._arrays import FloatArray
from viprl.errors import InvalidInputError

BINARY_VALUES = ((0.0, 1.0), (-1.0, 1.0))


@dataclass(frozen=True)
class Rewards:
    """Rewards of one step by group; missing ones are excluded everywhere and counted.

    Attributes:
        flat: (C,) rewards in plan order, NaN where missing.
        counts: (B,) rewards present.
        means, variances: (B,) of the rewards present (0 where none; the variance is unbiased, ddof 1, NaN below two).
        missing: number of planned rollouts without a reward.
    """

    flat: FloatArray
    counts: NDArray[np.int64]
    means: FloatArray
    variances: FloatArray
    missing: int

    def values(self) -> FloatArray:
        """The distinct rewards present, ascending."""
        return np.unique(self.flat[~np.isnan(self.flat)])


def read_rewards(rewards: Any, group_sizes: NDArray[np.int64]) -> Rewards:
    """Rewards as a user has them, by group.

    Args:
        rewards: a sequence of B groups in plan order, each a sequence of at most ``group_sizes[i]`` rewards or None;
            or one flat sequence of C rewards. None and NaN mean missing.
        group_sizes: (B,) planned sizes.

    Raises:
        InvalidInputError: wrong number of groups or rollouts, an infinite reward, or something that is no number.
    """
    sizes = np.asarray(group_sizes)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    flat = np.full(int(starts[-1]), np.nan)
    if not hasattr(rewards, "__len__"):
        rewards = list(rewards)
    if _is_flat(rewards, len(sizes)):
        if len(rewards) != len(flat):
            raise InvalidInputError(
                "flat rewards must have one entry per planned rollout (the sum of group sizes), but got "
                f"{len(rewards)} for {len(flat)}"
            )
        flat[:] = _numbers(rewards, "the step")
    else:
        if len(rewards) != len(sizes):
            raise InvalidInputError(
                "ragged rewards must have one sequence per group, one group per planned prompt, but got "
                f"{len(rewards)} for {len(sizes)} prompts"
            )
        for q, group in enumerate(rewards):
            if group is None:
                continue
            values = _numbers(group, f"group {q}")
            if len(values) > sizes[q]:
                raise InvalidInputError(
                    f"a group must have at most its planned rollouts, but group {q} got {len(values)} for {sizes[q]}"
                )
            flat[starts[q] : starts[q] + len(values)] = values
    if np.isinf(flat).any():
        raise InvalidInputError(f"rewards must be finite or missing, but got {int(np.isinf(flat).sum())} infinite ones")
    return _summarise(flat, sizes)


def successes(rewards: Rewards, reward_values: tuple[float, float]) -> FloatArray:
    """(B,) number of successes, rewards mapped from (low, high) to {0, 1}.

    Raises:
        InvalidInputError: a reward is neither of the two values.
    """
    low, high = reward_values
    odd = [v for v in rewards.values() if v not in (low, high)]
    if odd:
        raise InvalidInputError(
            f"rewards must be {low:g} or {high:g} for a predictor of success probabilities, but got {odd[0]:g}; "
            "declare `reward_values` if they are binary with other values, or predict the reward variance "
            "(RewardVariancePredictor) if they are real numbers"
        )
    mapped = (rewards.means - low) / (high - low) * rewards.counts
    return np.where(rewards.counts > 0, np.rint(mapped), 0.0)


def detect_values(rewards: Rewards) -> tuple[float, float] | None:
    """Which binary pair the rewards belong to; None while all present are 1 (both pairs fit) or none is present.

    Raises:
        InvalidInputError: the rewards fit neither pair.
    """
    values = rewards.values()
    if len(values) == 0 or (len(values) == 1 and values[0] == 1.0):
        return None
    for pair in BINARY_VALUES:
        if all(v in pair for v in values):
            return pair
    raise InvalidInputError(
        "rewards must all be in {0, 1} or all in {-1, 1} for a predictor of success probabilities, but got "
        f"{len(values)} distinct values in [{values[0]:g}, {values[-1]:g}]; declare `reward_values` if they are binary "
        "with other values, or predict the reward variance (RewardVariancePredictor) if they are real numbers"
    )


def _is_flat(rewards: Any, groups: int) -> bool:
    if isinstance(rewards, np.ndarray) and rewards.dtype != object:
        return rewards.ndim == 1
    if all(r is None for r in rewards):  # groups without rewards, or rollouts without rewards: the length tells
        return len(rewards) != groups
    # a tensor's elements are tensors without dimensions
    return all(r is None or np.isscalar(r) or getattr(r, "ndim", None) == 0 for r in rewards)


def _numbers(group: Sequence[Any] | NDArray[Any], where: str) -> FloatArray:
    if isinstance(group, np.ndarray) and group.dtype != object:
        values = group
    else:
        values = np.array([np.nan if r is None else r for r in group])
        if len(values) == 0:
            return np.empty(0)
    if values.ndim != 1 or values.dtype.kind not in "fiub":
        raise InvalidInputError(f"rewards must be numbers, None or NaN, but {where} holds {group!r:.80}")
    return values.astype(np.float64)


def _summarise(flat: FloatArray, sizes: NDArray[np.int64]) -> Rewards:
    groups = np.repeat(np.arange(len(sizes)), sizes)
    present = ~np.isnan(flat)
    values, owner = flat[present], groups[present]
    counts = np.bincount(owner, minlength=len(sizes))
    means = np.bincount(owner, values, len(sizes)) / np.maximum(counts, 1)
    # deviations from the group's own minimum: equal rewards then give exactly zero in floating point
    low = np.full(len(sizes), np.inf)
    np.minimum.at(low, owner, values)
    shifted = values - low[owner]
    shift_mean = np.bincount(owner, shifted, len(sizes)) / np.maximum(counts, 1)
    squares = np.bincount(owner, (shifted - shift_mean[owner]) ** 2, len(sizes))
    variances = np.where(counts > 1, squares / np.maximum(counts - 1, 1), np.nan)
    return Rewards(flat, counts.astype(np.int64), means, variances, int((~present).sum()))
