"""Train the arithmetic model from each stage, keep every rollout's norm, then measure the truth where training stopped.

``python arithmetic_history.py STAGE [seed]`` writes results/arithmetic_STAGE_SEED_{history,truth}.npz. History: 256
prompts, 64 a step, 8 rollouts each, RLOO, 32 steps; the norms are those of rollouts with an advantage, from the
backward pass of the update (all layers). Truth: fresh rollouts of all 256 prompts at the last weights.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import numpy as np
import stages
import torch
from tinyrl import TinyRun

import viprl
from viprl.gradient.measure import GradientMeter, measure
from viprl.gradient.pool import save_pools
from viprl.tasks.arithmetic import ArithmeticTask

RESULTS = Path(__file__).parent / "results"
PROMPTS, BATCH, GROUP, STEPS, TRUTH = 256, 64, 8, 32, 96


def main(stage: str, seed: int = 0) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    RESULTS.mkdir(exist_ok=True)
    model, tokenizer = stages.load(stage)
    data = ArithmeticTask(train_size=PROMPTS, seed=seed).train_dataset()
    prompts, answers = list(data["prompt"]), list(data["answer"])
    allocator = viprl.RolloutAllocator(viprl.DiscountedBeta(prompts), viprl.RLOO(), policy=viprl.Uniform())
    run = TinyRun(model, tokenizer, prompts, answers, allocator=allocator, record_norms=True)
    order, rng, records, start = [], random.Random(seed), [], time.time()
    for step in range(STEPS):
        if len(order) < BATCH:
            order = rng.sample(prompts, len(prompts))
        batch, order = order[:BATCH], order[BATCH:]
        records.append(run.step(batch, BATCH * GROUP))
        print(f"step {step} reward {records[-1].rewards.mean():.3f} {time.time() - start:.0f} s", flush=True)
    np.savez_compressed(
        RESULTS / f"arithmetic_{stage}_{seed}_history.npz",
        prompt_ids=np.array([r.prompt_ids for r in records]),
        group_sizes=np.array([r.group_sizes for r in records]),
        rewards=np.array([r.rewards for r in records]),
        squared_norms=np.array([r.squared_norms for r in records]),
    )
    run.hook.close()
    pools = measure(
        model,
        tokenizer,
        prompts,
        prompts,
        lambda q, texts: [float(text == answers[q]) for text in texts],
        rollouts=TRUTH,
        max_new_tokens=6,
        generate_rows=TRUTH,
        meter=GradientMeter(model, sketch_size=None, batch_rows=32),
    )
    save_pools(RESULTS / f"arithmetic_{stage}_{seed}_truth.npz", list(pools))
    print(f"done {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
