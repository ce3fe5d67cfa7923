"""Does the guard keep its promise with every predictor, variance model and policy?

A simulated world with drift: 128 prompts whose logits walk at random, gradient norms that differ by outcome and prompt.
100 steps of 64 prompts x 8 rollouts; the true variance of the groups that were used, relative to uniform ones, summed
over the run, by the true constants (reward variance for formulas, V1 and V2 for learned models).

    python benchmarks/guarded_worlds.py
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable

import numpy as np

import viprl
from viprl import allocation, variance

PROMPTS, BATCH, GROUP, STEPS, SIZE = 128, 64, 8, 100, 6
IDS = [f"q{i}" for i in range(PROMPTS)]
EMBEDDINGS = np.random.default_rng(7).normal(size=(PROMPTS, SIZE))

PREDICTORS: dict[str, Callable[[], viprl.Predictor]] = {
    "calibrated": lambda: viprl.CalibratedPredictor(EMBEDDINGS, prompt_ids=IDS),
    "discounted_beta": viprl.DiscountedBeta,
    "last_rate": viprl.LastRate,
    "moving_average": viprl.MovingAverage,
    "ridge": lambda: viprl.Ridge(EMBEDDINGS, prompt_ids=IDS),
    "gaussian_process": lambda: viprl.GaussianProcessPredictor(EMBEDDINGS, prompt_ids=IDS),
    "reward_variance": lambda: viprl.RewardVariancePredictor(EMBEDDINGS, prompt_ids=IDS),
}
MODELS: dict[str, Callable[[], viprl.VarianceModel]] = {
    "rloo": viprl.RLOO,
    "dr_grpo": viprl.DrGRPO,
    "grpo": variance.RelativeGRPO,
    "maxrl": variance.MaxRL,
    "learned rloo": viprl.OutcomeMoments,
    "learned dr_grpo": lambda: viprl.OutcomeMoments(estimator="dr_grpo"),
}
POLICIES = ("VIP", "Relaxed", "InverseAccuracy", "InverseVariance", "KnapsackRL")


class World:
    """Success probabilities that drift, and squared norms that depend on outcome and prompt."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.logits = EMBEDDINGS[:, 0] * 1.5 + self.rng.normal(0, 1.5, PROMPTS)
        self.own = self.rng.gamma(4.0, 0.25, PROMPTS)

    def drift(self) -> None:
        self.logits += self.rng.normal(0.02, 0.15, PROMPTS)

    def p(self, rows: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-self.logits[rows]))

    def norms(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean squared norm of failures and successes: a rare outcome is a surprise, and its gradient is large."""
        p = self.p(rows)
        return self.own[rows] * (0.2 + p), self.own[rows] * (1.2 - p)

    def variance(self, model: viprl.VarianceModel, rows: np.ndarray, n: np.ndarray) -> float:
        p, spread = self.p(rows), self.p(rows) * (1 - self.p(rows))
        if not model.learns:
            return float(model.variance(viprl.Prediction.point(p), n).sum())
        failure, success = self.norms(rows)
        v1, v2 = spread * ((1 - p) * success + p * failure), spread * (success + failure) / 2
        return float(model.value_at(v1, v2, n.astype(float)).sum())


def ratio(predictor: str, model: str, policy: str, *, seed: int = 0, guard: bool = True) -> tuple[float, int]:
    """(true variance relative to uniform groups over the run, steps with the policy's groups)."""
    world = World(seed)
    made = MODELS[model]()
    allocator = viprl.RolloutAllocator(PREDICTORS[predictor](), made, policy=getattr(allocation, policy)(), guard=guard)
    ours = uniform = 0.0
    for _ in range(STEPS):
        rows = world.rng.choice(PROMPTS, BATCH, replace=False)
        plan = allocator.allocate([IDS[i] for i in rows], BATCH * GROUP)
        ours += world.variance(made, rows, plan.group_sizes)
        uniform += world.variance(made, rows, plan.uniform_sizes)
        owner = rows[plan.rows()]
        rewards = (world.rng.random(len(owner)) < world.p(owner)).astype(float)
        failure, success = world.norms(owner)
        norms = np.where(rewards == 1, success, failure) * world.rng.gamma(4.0, 0.25, len(owner))
        allocator.observe(plan, rewards, squared_norms=norms)
        world.drift()
    return ours / uniform, allocator.policy_steps


def combinations() -> list[tuple[str, str, str]]:
    """What runs: learned models and maxrl need a success, and the relaxation a formula a f(n)."""
    return [
        (predictor, model, policy)
        for predictor, model, policy in itertools.product(PREDICTORS, MODELS, POLICIES)
        if not (model.startswith(("learned", "maxrl")) and (predictor == "reward_variance" or policy == "Relaxed"))
    ]


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    print(f"{'predictor':18}{'model':18}{'policy':18}{'guarded':>8}{'used':>6}{'unguarded':>11}")
    for predictor, model, policy in combinations():
        held, used = ratio(predictor, model, policy)
        free, _ = ratio(predictor, model, policy, guard=False)
        print(f"{predictor:18}{model:18}{policy:18}{held:8.3f}{used:6d}{free:11.3f}", flush=True)
