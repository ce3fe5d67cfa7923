"""From a pool of past rollouts to predictions, as if training had seen them step by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from viprl.gradient.pool import PromptPool
from viprl.prediction.base import Prediction
from viprl.variance.outcome_moments import OutcomeMoments

VISIT, BATCH = 4, 16  # rollouts of a prompt, and prompts, in one imagined step


def posterior(pools: Sequence[PromptPool]) -> Prediction:
    """Of each prompt's success probability from its rollouts (rewards in {0, 1}), with Jeffreys' prior."""
    k = np.array([p.rewards.sum() for p in pools])
    n = np.array([len(p.rewards) for p in pools], dtype=np.float64)
    return Prediction.beta(k + 0.5, n - k + 0.5)


def learn_from_pools(
    pools: Sequence[PromptPool], *, aggregation: str = "sum", estimator: str = "rloo"
) -> OutcomeMoments:
    """``OutcomeMoments`` after the pools' rollouts, in small steps, each predicted from the steps before it."""
    model = OutcomeMoments(estimator=estimator, keep=1.0, keep_visit=1.0)
    for visit in range(min(len(p.rewards) for p in pools) // VISIT):
        part = slice(visit * VISIT, (visit + 1) * VISIT)
        for start in range(0, len(pools), BATCH):
            own = pools[start : start + BATCH]
            past = posterior([p.part(np.arange(visit * VISIT)) for p in own])
            rewards = np.concatenate([p.rewards[part] for p in own])
            z = np.concatenate([p.norms(aggregation)[part] ** 2 for p in own])
            model.learn([p.prompt_id for p in own], past, np.full(len(own), VISIT), rewards, z)
    return model
