"""Rows of the history schema, one per group that has a reward.

Columns: step, prompt_id, visit (from 0), successes (rewards mapped to [0, 1] and summed), n_rollouts (rewards present),
reward_mean, reward_var (unbiased; None below two rewards), predicted_mean and predicted_bernoulli_variance (before the
step), group_size (planned), tokens, seconds (None where not told).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viprl.feedback.rewards import Rewards
from viprl.plan import Plan
from viprl.prediction.base import PromptId

FloatArray = NDArray[np.float64]


def history_rows(
    plan: Plan,
    read: Rewards,
    step: int,
    visits: Mapping[PromptId, int],
    reward_values: tuple[float, float],
    tokens: FloatArray | None,
    seconds: FloatArray | None,
) -> list[dict[str, Any]]:
    """One step's rows; ``visits`` counts each prompt's earlier groups, tokens and seconds are (B,)."""
    low, high = reward_values
    fresh: dict[PromptId, int] = {}
    rows: list[dict[str, Any]] = []
    for q, prompt_id in enumerate(plan.prompt_ids):
        visit = visits.get(prompt_id, 0) + fresh.get(prompt_id, 0)
        fresh[prompt_id] = fresh.get(prompt_id, 0) + 1
        n = int(read.counts[q])
        if n == 0:
            continue
        mean = float(read.means[q])
        rows.append(
            {
                "step": step,
                "prompt_id": str(prompt_id),
                "visit": visit,
                "successes": (mean - low) / (high - low) * n,
                "n_rollouts": n,
                "reward_mean": mean,
                "reward_var": float(read.variances[q]) if n > 1 else None,
                "predicted_mean": float(plan.prediction.mean[q]),
                "predicted_bernoulli_variance": float(plan.prediction.bernoulli_variance[q]),
                "group_size": int(plan.group_sizes[q]),
                "tokens": None if tokens is None else int(tokens[q]),
                "seconds": None if seconds is None else float(seconds[q]),
            }
        )
    return rows
