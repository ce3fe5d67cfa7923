"""TRL's logged statistics, mended to mean what they say when groups are uneven.

TRL averages over rollouts and reshapes to equal groups. With adaptive groups the first is biased towards prompts with
many rollouts and the second mixes prompts, so the last entry that TRL appended is replaced by the value by prompt. With
equal groups and no missing reward the replaced values equal TRL's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from viprl._arrays import FloatArray, IntArray
from viprl.feedback import group_moments


def mean_and_std(values: FloatArray, rows: IntArray, num_groups: int) -> tuple[float, float]:
    """Mean and standard deviation over the batch with every prompt weighing the same; NaN where undefined.

    Each of a prompt's n_q values weighs 1/(B' n_q), B' the prompts with a value; the variance carries N/(N-1) for the
    N values, which is the usual ddof of 1 when groups are equal.
    """
    moments = group_moments(values, rows, num_groups)
    seen = moments.count > 0
    if not seen.any():
        return float("nan"), float("nan")
    mean = float(moments.mean[seen].mean())
    total = int(moments.count.sum())
    if total < 2:
        return mean, float("nan")
    weights = np.zeros(num_groups)
    weights[seen] = 1 / (seen.sum() * moments.count[seen])
    present = ~np.isnan(values)
    spread = float((weights[rows[present]] * (values[present] - mean) ** 2).sum())
    return mean, float(np.sqrt(spread * total / (total - 1)))


def share_without_spread(rewards: FloatArray, rows: IntArray, num_groups: int) -> float:
    """Share of the prompts with two rewards or more whose rewards are all equal; NaN where there is none."""
    moments = group_moments(rewards, rows, num_groups)
    comparable = moments.count > 1
    return float(moments.constant[comparable].mean()) if comparable.any() else float("nan")


def mend(
    metrics: Mapping[str, list[float]],
    names: Sequence[str],
    rewards_per_func: FloatArray,
    rewards: FloatArray,
    rows: IntArray,
    num_groups: int,
) -> None:
    """Replace what TRL just appended to its train metrics.

    Args:
        metrics: TRL's ``_metrics["train"]``.
        names: of the F reward functions.
        rewards_per_func: (C, F), NaN for missing.
        rewards: (C,) weighted sums, NaN for missing.
        rows: (C,) group of every rollout.
        num_groups: B.
    """
    for i, name in enumerate(names):
        last = -list(names[i:]).count(name)  # functions of the same name share one list
        mean, std = mean_and_std(rewards_per_func[:, i], rows, num_groups)
        metrics[f"rewards/{name}/mean"][last] = mean
        metrics[f"rewards/{name}/std"][last] = std
    metrics["reward"][-1], metrics["reward_std"][-1] = mean_and_std(rewards, rows, num_groups)
    metrics["frac_reward_zero_std"][-1] = share_without_spread(rewards, rows, num_groups)


def replace_last(log: Any, values: Sequence[float]) -> None:
    """Replace the newest entries of a bounded deque."""
    for _ in range(min(len(values), len(log))):
        log.pop()
    log.extend(values)
