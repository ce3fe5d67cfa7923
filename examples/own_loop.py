"""viprl in a training loop of your own: numpy alone, no TRL.

The model is as small as a model can be. A completion is one token that is right or wrong, with one logit for every
prompt, and 64 tokens of style that all prompts share and that decide nothing, as most tokens of a real completion do.
Each step draws a batch of prompts, asks the allocator how many rollouts each gets, samples them, computes
leave-one-out advantages on the uneven groups, and takes a policy gradient step. The same is done with equal groups and
the same number of rollouts. What the style tokens receive is pure noise: its size is what adaptive groups reduce.

    python examples/own_loop.py
"""

from __future__ import annotations

import argparse

import numpy as np

import viprl

PROMPTS, BATCH, MEAN_GROUP, STYLE = 200, 40, 8, 64


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def train(policy: viprl.VIP | viprl.Uniform, steps: int, seed: int) -> tuple[float, float]:
    """(success rate at the end, mean squared length of the noise in a step's gradient)."""
    rng = np.random.default_rng(seed)
    answer = rng.normal(-1.5, 2.5, PROMPTS)  # many prompts are nearly hopeless or nearly solved
    style = np.zeros(STYLE)
    ids = [f"prompt-{i}" for i in range(PROMPTS)]
    allocator = viprl.RolloutAllocator(
        viprl.CalibratedPredictor(None, prompt_ids=ids),
        viprl.RLOO(),
        min_group_size=3,
        max_group_size=32,
        policy=policy,
    )
    noise = 0.0
    for _ in range(steps):
        batch = rng.choice(PROMPTS, BATCH, replace=False)
        plan = allocator.allocate([ids[i] for i in batch], budget=BATCH * MEAN_GROUP)
        rows = plan.rows()  # prompt of every rollout
        p = sigmoid(answer[batch])[rows]
        rewards = (rng.random(len(rows)) < p).astype(float)
        tokens = (rng.random((len(rows), STYLE)) < sigmoid(style)).astype(float)
        allocator.observe(plan, rewards)

        # The gradient of a token's log-probability with respect to its logit is (token - probability). With equal
        # prompt weights the mean over rollouts is the mean over prompts.
        advantages = plan.advantages(rewards)
        answer_gradient = np.bincount(rows, advantages * (rewards - p), BATCH) / len(rows)
        style_gradient = advantages @ (tokens - sigmoid(style)) / len(rows)
        noise += float((style_gradient**2).sum())
        answer[batch] += 20.0 * answer_gradient
        style += 0.1 * style_gradient
    return float(sigmoid(answer).mean()), noise / steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    for policy in (viprl.Uniform(), viprl.VIP()):
        results = np.array([train(policy, options.steps, seed) for seed in range(options.seeds)])
        rate, noise = results.mean(axis=0)
        print(f"{policy.name:>8}: success rate {rate:.3f}, noise in a step's gradient {noise:.4f}")


if __name__ == "__main__":
    main()
