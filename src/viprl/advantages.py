"""Advantages of ragged groups of rollouts.

Trainers keep the rollouts of a step in a flat array of C rows. A group is named by a row index, never by position, so
groups of any size, in any order, with any number of missing rewards are handled the same way. All arithmetic is in
float64; the caller casts.

Notation: C rollouts (rows) of the step, B groups (prompts of the batch), n_q the rewards present in group q.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from viprl._arrays import FloatArray, IntArray
from viprl.errors import InvalidInputError
from viprl.feedback.groups import group_moments
from viprl.feedback.rewards import read_flat

Estimator = Literal["dr_grpo", "rloo", "grpo", "maxrl"]
PromptWeighting = Literal["none", "rollout", "equal"]

ESTIMATORS: tuple[str, ...] = ("dr_grpo", "rloo", "grpo", "maxrl")
PROMPT_WEIGHTINGS: tuple[str, ...] = ("equal", "rollout", "none")
GRPO_EPSILON = 1e-4


def flat_rewards(rewards: Any, group_sizes: ArrayLike) -> FloatArray:
    """Rewards in plan order as one (C,) array with NaN for missing ones.

    Args:
        rewards: flat (C,), or B sequences of at most n_q rewards each; None and NaN are missing, and so are the
            rollouts that a group lacks. Read as ``RolloutAllocator.observe`` reads them.
        group_sizes: (B,) planned sizes.

    Raises:
        InvalidInputError: the shapes do not fit, a reward is infinite, or it is no number.
    """
    return read_flat(rewards, _sizes(group_sizes))


def float32_values(reward_values: tuple[float, float] | None) -> tuple[float, float] | None:
    """(failure, success) as trainers hand rewards on: rounded to float32 numbers."""
    return None if reward_values is None else (float(np.float32(reward_values[0])), float(np.float32(reward_values[1])))


def rows_of_sizes(group_sizes: ArrayLike) -> IntArray:
    """(C,) index of the group of every rollout, for rollouts that lie group after group."""
    sizes = _sizes(group_sizes)
    return np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)


def advantages_by_row(
    rewards: ArrayLike,
    rows: ArrayLike,
    num_groups: int,
    estimator: str,
    *,
    epsilon: float | None = None,
    prompt_weighting: str = "none",
) -> FloatArray:
    """Advantages of C rollouts whose groups are given row by row.

    * ``dr_grpo``: A = r - mean of the group.
    * ``rloo``: A = r - mean of the other rewards of the group = n/(n-1) times the former.
    * ``grpo``: A = (r - mean) / (s + epsilon), s the group's standard deviation with ddof 1.
    * ``maxrl``: A = (r - mean) / mean, for rewards in [0, 1] (arXiv 2602.02710).

    Missing rewards get advantage 0 and stay outside the baseline. Groups with one reward, and groups whose rewards are
    all equal, get exactly 0.

    Args:
        rewards: (C,), NaN for missing.
        rows: (C,) group of every rollout.
        num_groups: B, including groups without rewards.
        estimator: "dr_grpo", "rloo", "grpo" or "maxrl".
        epsilon: added to the standard deviation of ``grpo``; None is 1e-4 (TRL's; verl uses 1e-6).
        prompt_weighting: "equal" multiplies by (C'/B')/n_q, with C' the rewards present, B' the groups that have any
            and n_q the rewards present in the group, so that the mean over rollouts becomes the mean over prompts of
            the groups' means; "rollout" and "none" leave the advantages as they are.

    Returns:
        (C,) float64 advantages.

    Raises:
        InvalidInputError: an unknown name, or negative rewards for "maxrl".
    """
    _check_choices(estimator, prompt_weighting)
    values = np.asarray(rewards, dtype=np.float64)
    index = np.asarray(rows, dtype=np.int64)
    moments = group_moments(values, index, num_groups)
    useful = ~np.isnan(values) & (moments.count > 1)[index] & ~moments.constant[index]
    advantages = np.zeros(len(values))
    q = index[useful]
    centred = values[useful] - moments.mean[q]
    if estimator == "rloo":
        centred = centred * (moments.count[q] / (moments.count[q] - 1))
    elif estimator == "grpo":
        centred = centred / (np.sqrt(moments.variance[q]) + (GRPO_EPSILON if epsilon is None else epsilon))
    elif estimator == "maxrl":
        if len(values) and np.nanmin(values, initial=0.0) < 0:
            raise InvalidInputError(
                "maxrl divides by the group's mean reward, so rewards must be 0 (failure) to 1 (success), but got "
                f"{np.nanmin(values)}"
            )
        centred = centred / moments.mean[q]
    advantages[useful] = centred
    if prompt_weighting == "equal":
        advantages *= equal_weights(moments.count)[index]
    return advantages


def group_advantages(
    rewards: Any,
    plan_or_sizes: Any,
    estimator: str,
    *,
    epsilon: float | None = None,
    prompt_weighting: str = "none",
) -> FloatArray:
    """Advantages of rollouts that lie group after group; see ``advantages_by_row``.

    Args:
        rewards: flat (C,) or ragged, in plan order; None and NaN are missing.
        plan_or_sizes: a Plan, or the (B,) group sizes.
        estimator: "dr_grpo", "rloo", "grpo" or "maxrl".
        epsilon: see ``advantages_by_row``.
        prompt_weighting: see ``advantages_by_row``.

    Returns:
        (C,) float64 advantages in plan order.

    Example:
        >>> group_advantages([[1, 0, 0, 0], [5.0, 5.0], [1, None]], [4, 2, 2], "dr_grpo").tolist()
        [0.75, -0.25, -0.25, -0.25, 0.0, 0.0, 0.0, 0.0]
    """
    sizes = getattr(plan_or_sizes, "group_sizes", plan_or_sizes)
    return advantages_by_row(
        flat_rewards(rewards, sizes),
        rows_of_sizes(sizes),
        len(_sizes(sizes)),
        estimator,
        epsilon=epsilon,
        prompt_weighting=prompt_weighting,
    )


def equal_weights(counts: ArrayLike) -> FloatArray:
    """(B,) factor (C'/B')/n_q from the rewards present (B,); 0 for groups without any."""
    present = np.asarray(counts, dtype=np.int64)
    weights = np.zeros(len(present))
    seen = present > 0
    if seen.any():
        weights[seen] = present.sum() / (seen.sum() * present[seen])
    return weights


def _check_choices(estimator: str, prompt_weighting: str) -> None:
    if estimator not in ESTIMATORS:
        raise InvalidInputError(f"`estimator` must be one of {ESTIMATORS}, but got {estimator!r}")
    if prompt_weighting not in PROMPT_WEIGHTINGS:
        raise InvalidInputError(f"`prompt_weighting` must be one of {PROMPT_WEIGHTINGS}, but got {prompt_weighting!r}")


def _sizes(group_sizes: ArrayLike) -> IntArray:
    sizes = np.asarray(group_sizes)
    if sizes.ndim != 1 or (len(sizes) and (not np.issubdtype(sizes.dtype, np.integer) or sizes.min() < 0)):
        raise InvalidInputError(f"group sizes must be (B,) non-negative integers, but got {group_sizes!r}")
    return sizes.astype(np.int64)
