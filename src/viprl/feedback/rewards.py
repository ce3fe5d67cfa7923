"""Ragged rewards of one step, checked and summed per group.

Notation: B groups in the step, C planned rollouts, n (B,) rewards present per group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viprl._arrays import BoolArray, FloatArray, IntArray
from viprl.errors import InvalidInputError
from viprl.feedback.groups import SAME_REWARD, GroupMoments, group_moments
from viprl.prediction.base import Prediction

BINARY_VALUES = ((0.0, 1.0), (-1.0, 1.0))
LARGEST = 1e70


@dataclass(frozen=True)
class Rewards:
    """Rewards of one step by group; missing ones are excluded everywhere and counted.

    Attributes:
        flat: (C,) rewards in plan order, NaN where missing.
        rows: (C,) group of every rollout.
        moments: of the B groups; its columns are also attributes here: counts, means, variances, noise, constant.
    """

    flat: FloatArray
    rows: IntArray
    moments: GroupMoments

    @classmethod
    def of(cls, flat: FloatArray, group_sizes: NDArray[np.int64]) -> Rewards:
        """Rewards (C,) of groups that lie one after another."""
        rows = np.repeat(np.arange(len(group_sizes), dtype=np.int64), group_sizes)
        return cls(flat, rows, group_moments(flat, rows, len(group_sizes)))

    def replaced(self, flat: FloatArray) -> Rewards:
        """Other numbers (C,) for the same rollouts."""
        return Rewards(flat, self.rows, group_moments(flat, self.rows, len(self.counts)))

    @property
    def counts(self) -> IntArray:
        """(B,) rollouts with a reward."""
        return self.moments.count

    @property
    def means(self) -> FloatArray:
        """(B,) mean rewards; NaN where there is none."""
        return self.moments.mean

    @property
    def variances(self) -> FloatArray:
        """(B,) unbiased variances of the rewards; NaN below two."""
        return self.moments.variance

    @property
    def noise(self) -> FloatArray:
        """(B,) unbiased estimate of Var(variance) given the prompt; see ``GroupMoments``."""
        return self.moments.noise

    @property
    def constant(self) -> BoolArray:
        """(B,) True where all rewards of a group are equal."""
        return self.moments.constant

    @property
    def missing(self) -> int:
        """Planned rollouts without a reward."""
        return int(np.isnan(self.flat).sum())

    @cached_property
    def values(self) -> FloatArray:
        """The distinct rewards present, ascending."""
        return np.unique(self.flat[~np.isnan(self.flat)])

    def as_prediction(self) -> Prediction:
        """What this step alone says of each prompt: Jeffreys' posterior Beta(k + 1/2, n - k + 1/2) where the step has
        at most two distinct rewards, k of n the larger; else sample mean and variance as they are."""
        n = self.counts.astype(np.float64)
        if len(self.values) <= 2:
            low, high = (self.values[0], self.values[-1]) if len(self.values) == 2 else (0.0, 1.0)
            k = np.where(n > 0, np.rint((self.means - low) / (high - low) * n), 0.0)
            return Prediction.beta(np.clip(k, 0, n) + 0.5, n - np.clip(k, 0, n) + 0.5)
        mean = np.clip(np.nan_to_num(self.means), 0.0, 1.0)
        return Prediction(
            mean,
            mean * (1 - mean),
            quadrature=lambda: (mean[:, None].copy(), np.ones((len(mean), 1))),
            reward_variance=np.nan_to_num(self.variances),
        )


def read_rewards(rewards: Any, group_sizes: NDArray[np.int64], *, name: str = "rewards") -> Rewards:
    """Rewards as a user has them, by group of ``group_sizes`` (B,); see ``read_flat``."""
    sizes = np.asarray(group_sizes)
    return Rewards.of(read_flat(rewards, sizes, name), sizes)


def read_flat(values: Any, group_sizes: NDArray[np.int64], name: str = "rewards") -> FloatArray:
    """(C,) numbers, one a planned rollout, in plan order; NaN where missing.

    Args:
        values: a sequence of B groups in plan order, each a sequence of at most ``group_sizes[i]`` numbers or None; or
            one flat sequence of C numbers. None, NaN and masked entries mean missing. Tensors will do.
        group_sizes: (B,) planned sizes.
        name: what errors call the numbers.

    Raises:
        InvalidInputError: wrong number of groups or rollouts, a value that is infinite or beyond ``LARGEST``, or
            something that is no number.
    """
    flat = _flat(_as_numpy(values), np.asarray(group_sizes), name)
    if np.isinf(flat).any():
        raise InvalidInputError(f"{name} must be finite or missing, but got {int(np.isinf(flat).sum())} infinite ones")
    if np.nanmax(np.abs(flat), initial=0.0) > LARGEST:  # fourth powers must stay numbers
        raise InvalidInputError(f"{name} must lie within +-{LARGEST:g}, but got {flat[np.nanargmax(np.abs(flat))]:g}")
    return flat


def read_outcomes(
    rewards: Rewards,
    given: Any,
    group_sizes: NDArray[np.int64],
    *,
    success_at: float | None,
    reward_values: tuple[float, float] | None,
) -> tuple[Rewards, tuple[float, float] | None]:
    """What a predictor of success probabilities learns: 0 and 1 for every rollout whose success is known.

    Args:
        rewards: as trained.
        given: the binary outcomes as a user told them, shaped and valued as rewards may be; or None.
        group_sizes: (B,) planned sizes.
        success_at: rewards from here on are successes.
        reward_values: (failure, success) as declared or seen so far, of ``given`` where that is there; None: not yet
            known.

    Returns:
        The outcomes, and the reward values as far as they are known now.

    Raises:
        InvalidInputError: outcomes, or rewards in their place, that are not binary.
    """
    if given is not None:
        source = read_rewards(given, group_sizes, name="successes")
    elif success_at is not None:
        return rewards.replaced(reached(rewards.flat, success_at)), reward_values
    else:
        source = rewards
    name = "rewards" if given is None else "successes"
    values = reward_values or detect_values(source, name)
    return to_successes(source, values or (0.0, 1.0), name), values


def reached(rewards: FloatArray, threshold: float | None) -> FloatArray:
    """(C,) 1 where a reward is at least the threshold, 0 below, NaN where it is missing; without one the rewards."""
    if threshold is None:
        return rewards
    at = threshold - SAME_REWARD * abs(threshold)  # a reward that float32 rounded down still reaches its threshold
    return np.where(np.isnan(rewards), np.nan, (rewards >= at).astype(np.float64))


def to_successes(rewards: Rewards, reward_values: tuple[float, float], name: str = "rewards") -> Rewards:
    """Rewards mapped from (low, high) to {0, 1}.

    Raises:
        InvalidInputError: a reward is neither of the two values.
    """
    low, high = reward_values
    odd = [v for v in rewards.values if v not in (low, high)]
    if odd:
        raise InvalidInputError(
            f"{name} must be {low:g} or {high:g} for a predictor of success probabilities, but got {odd[0]:g}; "
            f"{_REMEDY}"
        )
    return rewards if (low, high) == (0.0, 1.0) else rewards.replaced((rewards.flat - low) / (high - low))


def detect_values(rewards: Rewards, name: str = "rewards") -> tuple[float, float] | None:
    """Which binary pair the rewards belong to; None while all present are 1 (both pairs fit) or none is present.

    Raises:
        InvalidInputError: the rewards fit neither pair.
    """
    values = rewards.values
    if len(values) == 0 or (len(values) == 1 and values[0] == 1.0):
        return None
    for pair in BINARY_VALUES:
        if all(v in pair for v in values):
            return pair
    two = (
        f"reward_values=[{values[0]:g}, {values[1]:g}] if these are failure and success; or "
        if len(values) == 2
        else ""
    )
    raise InvalidInputError(
        f"{name} must all be in {{0, 1}} or all in {{-1, 1}} for a predictor of success probabilities, but got "
        f"{len(values)} distinct values in [{values[0]:g}, {values[-1]:g}]; {two}{_REMEDY}"
    )


_REMEDY = (
    "declare `reward_values` if they are binary with other values, say which are successes (`success_reward` in "
    "settings, `success_at` of an allocator, or observe's `successes`), or predict the variance of real rewards "
    "(predictor='reward_variance', RewardVariancePredictor)"
)


def _flat(rewards: Any, sizes: NDArray[np.int64], name: str) -> FloatArray:
    total = int(sizes.sum())
    if not hasattr(rewards, "__len__"):
        rewards = list(rewards)
    if _is_flat(rewards, len(sizes)):
        if len(rewards) != total:
            raise InvalidInputError(
                f"flat {name} must have one entry per planned rollout (the sum of group sizes), but got "
                f"{len(rewards)} for {total}"
            )
        return _numbers(rewards, name, "the step")
    if len(rewards) != len(sizes):
        raise InvalidInputError(
            f"ragged {name} must have one sequence per group, one group per planned prompt, but got "
            f"{len(rewards)} for {len(sizes)} prompts"
        )
    flat, starts = np.full(total, np.nan), np.cumsum(sizes) - sizes
    for q, group in enumerate(rewards):
        if group is None:
            continue
        values = _numbers(group, name, f"group {q}")
        if len(values) > sizes[q]:
            raise InvalidInputError(
                f"a group must have at most its planned rollouts, but group {q} got {len(values)} for {sizes[q]}"
            )
        flat[starts[q] : starts[q] + len(values)] = values
    return flat


def _is_flat(rewards: Any, groups: int) -> bool:
    if isinstance(rewards, np.ndarray) and rewards.dtype != object:
        return rewards.ndim == 1
    if all(r is None for r in rewards):  # groups without rewards, or rollouts without rewards: the length tells
        return len(rewards) != groups
    # a tensor's elements are tensors without dimensions
    return all(r is None or np.isscalar(r) or getattr(r, "ndim", None) == 0 for r in rewards)


def _as_numpy(values: Any) -> Any:
    """Tensors (any device, precision, with or without gradient) and masked arrays as arrays; the rest as it is."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        return (values.double() if values.is_floating_point() else values).numpy()
    if isinstance(values, np.ma.MaskedArray):
        return np.ma.filled(values.astype(np.float64), np.nan)
    return values


def _numbers(group: Sequence[Any] | NDArray[Any], name: str, where: str) -> FloatArray:
    values = _as_numpy(group)
    if not (isinstance(values, np.ndarray) and values.dtype != object):
        items = [_as_numpy(item) for item in values]
        values = np.array([np.nan if item is None or item is np.ma.masked else item for item in items])
        if len(values) == 0:
            return np.empty(0)
    if values.ndim != 1 or values.dtype.kind not in "fiub":
        raise InvalidInputError(f"{name} must be numbers, None or NaN, but {where} holds {group!r:.80}")
    return np.asarray(values, dtype=np.float64)
