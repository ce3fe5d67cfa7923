"""Train the arithmetic model, keep every rollout's norm, and measure the truth at some points on the way.

``python arithmetic_history.py WARM_START SEED POINT...`` trains to the last point (in updates) and writes, at each
point, results/arithmetic_WARM_START_SEED_POINT_{history,truth}.npz. History: 256 prompts, 64 a step, 8 rollouts each,
RLOO; the norms are those of rollouts with an advantage, from the backward pass of the update (all layers); the proxies
that need no backward pass are those of all rollouts. Truth:
fresh rollouts of all 256 prompts at the weights of that point.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import numpy as np
import stages
import torch
from tinyrl import StepRecord, TinyRun

import viprl
from viprl.gradient.measure import GradientMeter, measure
from viprl.gradient.pool import PromptPool, save_pools
from viprl.tasks.arithmetic import ArithmeticTask

RESULTS = Path(__file__).parent / "results"
PROMPTS, BATCH, GROUP, TRUTH = 256, 64, 8, 64


def main(warm_start: str, seed: int, *points: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    RESULTS.mkdir(exist_ok=True)
    model, tokenizer = stages.load(warm_start)
    data = ArithmeticTask(train_size=PROMPTS, seed=seed).train_dataset()
    prompts, answers = list(data["prompt"]), list(data["answer"])
    allocator = viprl.RolloutAllocator(viprl.DiscountedBeta(prompts), viprl.RLOO(), policy=viprl.Uniform())
    run = TinyRun(model, tokenizer, prompts, answers, allocator=allocator, record_norms=True, record_proxies=True)
    order, rng, records, start = [], random.Random(seed), [], time.time()
    for step in range(1, max(points) + 1):
        if len(order) < BATCH:
            order = rng.sample(prompts, len(prompts))
        batch, order = order[:BATCH], order[BATCH:]
        records.append(run.step(batch, BATCH * GROUP))
        print(f"step {step} reward {records[-1].rewards.mean():.3f} {time.time() - start:.0f} s", flush=True)
        if step in points:
            name = f"arithmetic_{warm_start}_{seed}_{step}"
            save_history(RESULTS / f"{name}_history.npz", records)
            save_pools(RESULTS / f"{name}_truth.npz", truth(model, tokenizer, prompts, answers))
            print(f"measured {time.time() - start:.0f} s", flush=True)


def save_history(path: Path, records: list[StepRecord]) -> None:
    np.savez_compressed(
        path,
        prompt_ids=np.array([r.prompt_ids for r in records]),
        group_sizes=np.array([r.group_sizes for r in records]),
        rewards=np.array([r.rewards for r in records]),
        squared_norms=np.array([r.squared_norms for r in records]),
        **{f"proxy_{name}": np.array([r.proxies[name] for r in records]) for name in records[0].proxies},
    )


def truth(model, tokenizer, prompts: list[str], answers: list[str]) -> list[PromptPool]:
    return list(
        measure(
            model,
            tokenizer,
            prompts,
            prompts,
            lambda q, texts: [float(text == answers[q]) for text in texts],
            rollouts=TRUTH,
            max_new_tokens=6,
            generate_rows=TRUTH,
            meter=GradientMeter(model, sketch_size=None, batch_rows=TRUTH),
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
