"""A cheap screen of all candidates: logistic prompts that share parameters, GRPO advantages, Adam. Seconds a run.

    python screen.py [SEEDS]

Prompt q succeeds with probability sigmoid(x_q . theta); a rollout's score is (R - p) x_q and noise; a share of the
prompts is dead. 100 steps, B C/B = 32 x 8, 64 x 4, 16 x 16, L = 3, U = 4 C/B, DiscountedBeta predictor. Printed:
success on other prompts after half and all steps, minus uniform's, paired by seed with 95 % intervals; live groups.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from objectives import candidates

import viprl

RESULTS = Path(__file__).parent / "results" / "screen.jsonl"
PROMPTS, FEATURES, STEPS, LEARNING_RATE, NOISE = 512, 24, 100, 0.03, 2.0
WORLDS = ((8, 32, 0.3), (8, 32, 0.6), (4, 64, 0.3), (16, 16, 0.3))  # mean group size, prompts a step, dead share
NAMES = ("uniform", "rloo", "signal", "relative", "live", "own")


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def features(rng: np.random.Generator, count: int) -> np.ndarray:
    x = rng.normal(size=(count, FEATURES)) * 2 / np.sqrt(FEATURES)
    x[:, 0] = 1
    return x


def train(name: str, seed: int, group_size: int, batch: int, dead: float) -> tuple[float, float, float]:
    """Success on other prompts at half and at the end, share of live groups."""
    world, rng = np.random.default_rng(7), np.random.default_rng(1000 + seed)
    x, test = features(world, PROMPTS), features(world, 256)
    hopeless = world.random(PROMPTS) < dead
    theta = rng.normal(size=FEATURES) * 0.3
    theta[0] = -1.5
    ids = [str(q) for q in range(PROMPTS)]
    predictor = viprl.DiscountedBeta(ids)
    policy = viprl.Uniform() if name == "uniform" else viprl.VIP()
    model = {"uniform": viprl.RLOO(), **candidates(group_size)}[name]
    first, second, order, live, curve = np.zeros(FEATURES), np.zeros(FEATURES), [], 0.0, []
    for step in range(1, STEPS + 1):
        order = order if len(order) >= batch else order + rng.permutation(PROMPTS).tolist()
        rows, order = np.array(order[:batch]), order[batch:]
        p = np.where(hopeless[rows], 0.0, sigmoid(x[rows] @ theta))
        own = [ids[q] for q in rows]
        n = policy.allocate(
            predictor.predict(own),
            model=model,
            budget=batch * group_size,
            min_group_size=3,
            max_group_size=4 * group_size,
        )
        of = np.repeat(np.arange(batch), n)
        rewards = (rng.random(len(of)) < p[of]).astype(float)
        advantages = viprl.group_advantages(rewards, n, "grpo") / n[of]
        scores = (rewards - p[of])[:, None] * x[rows[of]] + NOISE * rng.normal(size=(len(of), FEATURES))
        gradient = advantages @ scores / batch
        first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
        theta = theta + LEARNING_RATE * first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.99**step)) + 1e-8)
        k = np.bincount(of, rewards, batch)
        live += float(((k > 0) & (k < n)).mean()) / STEPS
        predictor.observe(own, k, n)
        curve.append(float(sigmoid(test @ theta).mean()))
    return curve[STEPS // 2 - 1], curve[-1], live


def main(seeds: int) -> None:
    found: list[dict[str, Any]] = []
    for group_size, batch, dead in WORLDS:
        base = None
        for name in NAMES:
            count = seeds // 2 if name == "own" else seeds  # no convex curve: the slowest by far
            runs = np.array([train(name, seed, group_size, batch, dead) for seed in range(count)])
            base = runs if base is None else base
            d = (runs - base[:count])[:, :2]
            half = 1.96 * d.std(axis=0, ddof=1) / np.sqrt(count)
            found.append({
                "group_size": group_size, "batch": batch, "dead": dead, "objective": name, "seeds": count,
                "half": d[:, 0].mean().round(4), "half_error": half[0].round(4),
                "end": d[:, 1].mean().round(4), "end_error": half[1].round(4),
                "success": runs[:, 1].mean().round(4), "live_ratio": (runs[:, 2].mean() / base[:, 2].mean()).round(3),
            })  # fmt: skip
            print(json.dumps(found[-1]), flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text("".join(json.dumps(row) + "\n" for row in found))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 16)
