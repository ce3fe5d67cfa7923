"""Rules that decide before the rollouts, by a prediction: VIP and every policy of ``viprl.allocation``, DynaMO."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from viprl._arrays import FloatArray, IntArray
from viprl.allocation import Policy
from viprl.allocator import RolloutAllocator
from viprl.errors import InvalidInputError
from viprl.plan import Plan
from viprl.prediction import Prediction, Predictor
from viprl.replay.rules.base import Rule, Setting, proportional_sizes, uniform_sizes
from viprl.replay.worlds.base import Step

SOURCES = {
    "vip": "Nguyen et al., arXiv 2602.01601 (exact integer solution)",
    "relaxed": "Nguyen et al., arXiv 2602.01601, Theorems 5.1, 5.2 and Algorithm 2",
    "uniform": "equal groups, as every trainer does by default",
    "inverse_accuracy": "Nguyen et al., arXiv 2602.01601, Table 3",
    "inverse_variance": "Nguyen et al., arXiv 2602.01601, Table 3",
    "knapsack_rl": "Knapsack RL, arXiv 2509.25849",
}


class PolicyRule(Rule):
    """A policy of ``viprl.allocation`` with a predictor."""

    def __init__(self, name: str, policy: Policy, predictor: Predictor) -> None:
        super().__init__(predictor)
        self.name, self.policy = name, policy
        self.source = SOURCES.get(policy.name, "a policy of your own")

    def decide(self, step: Step, ids: Sequence[str], prediction: Prediction | None, setting: Setting) -> IntArray:
        return self.policy.allocate(
            prediction,  # type: ignore[arg-type]  # a PolicyRule has a predictor
            model=setting.model,
            budget=step.budget,
            min_group_size=setting.min_group_size,
            max_group_size=setting.max_group_size,
        )


class UniformRule(Rule):
    """Equal groups (C / B rollouts each)."""

    name, source = "uniform", SOURCES["uniform"]

    def decide(self, step: Step, ids: Sequence[str], prediction: Prediction | None, setting: Setting) -> IntArray:
        return uniform_sizes(len(step), step.budget, setting)


class GuardedRule(Rule):
    """The whole ``RolloutAllocator`` as a trainer runs it: predictor, policy, guard and quarantine of outages.

    In a full-information replay the allocator observes the recorded rollouts of every prompt instead of a group of its
    own size; its guard judges the sizes that it decided.
    """

    def __init__(self, name: str, policy: Policy, predictor: Predictor, setting: Setting) -> None:
        super().__init__(predictor)
        self.name = name
        self.source = "viprl's allocator: guard on the realised variance, quarantine of outages"
        self.allocator = RolloutAllocator(
            predictor,
            setting.model,
            min_group_size=setting.min_group_size,
            max_group_size=setting.max_group_size,
            policy=policy,
            reward_values=(0.0, 1.0),
        )
        self._plan: Plan | None = None

    def predict(self, ids: Sequence[str]) -> Prediction | None:
        return self.allocator.predict(ids)

    def decide(self, step: Step, ids: Sequence[str], prediction: Prediction | None, setting: Setting) -> IntArray:
        self._plan = self.allocator.allocate(ids, step.budget)
        return self._plan.group_sizes

    def learn(self, ids: Sequence[str], successes: FloatArray, rollouts: IntArray) -> None:
        if self._plan is None:
            raise InvalidInputError("a guarded rule must decide before it learns")
        k = np.rint(successes).astype(np.int64)
        if not np.allclose(k, successes):
            raise InvalidInputError("a guarded replay needs binary rewards, but the log has fractional successes")
        told = dataclasses.replace(self._plan, group_sizes=rollouts.copy(), budget=int(rollouts.sum()))
        place = np.arange(len(told.rows())) - np.repeat(np.cumsum(rollouts) - rollouts, rollouts)
        self.allocator.observe(told, (place < np.repeat(k, rollouts)).astype(np.float64))


class DynaMO(Rule):
    """DynaMO (arXiv 2602.19208): n in proportion to k(G-k)/(G(G-1)) from all counts so far, n in [4, 24].

    Prompts without history get the mean weight of the others (all equal at first). Rollouts that zero weights leave
    over are spread equally.
    """

    name, source = "dynamo", "DynaMO, arXiv 2602.19208"
    bounds = (4, 24)

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[str, tuple[float, float]] = {}

    def decide(self, step: Step, ids: Sequence[str], prediction: Prediction | None, setting: Setting) -> IntArray:
        k, n = np.array([self._counts.get(i, (0.0, 0.0)) for i in ids]).T
        known = n >= 2
        if not known.any():
            return uniform_sizes(len(step), step.budget, setting)
        weight = np.where(known, k * (n - k) / np.maximum(n * (n - 1), 1), np.nan)
        weight = np.where(known, weight, np.nanmean(weight))
        mean = step.budget // len(step)
        low, high = min(self.bounds[0], mean), max(self.bounds[1], mean + 1)
        return proportional_sizes(weight, step.budget, low, high)

    def learn(self, ids: Sequence[str], successes: FloatArray, rollouts: IntArray) -> None:
        for i, k, n in zip(ids, successes.tolist(), rollouts.tolist(), strict=True):
            before = self._counts.get(i, (0.0, 0.0))
            self._counts[i] = (before[0] + k, before[1] + n)
