"""Measure SmolLM2's per-rollout gradients: ``python smollm_pools.py [rollouts] [max_new_tokens]``.

Writes results/smollm_pools.npz after every prompt. Prompts whose rollouts are all right or all wrong are skipped.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import smollm_model
import torch

from viprl.gradient.measure import GradientMeter, measure
from viprl.gradient.pool import save_pools

OUT = Path(__file__).parent / "results" / "smollm_pools.npz"


def main(rollouts: int = 32, max_new_tokens: int = 16) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    OUT.parent.mkdir(exist_ok=True)
    model, tokenizer = smollm_model.load()
    asked = smollm_model.questions()
    start = time.time()
    pools = []
    running = measure(
        model,
        tokenizer,
        [smollm_model.prompt(question) for question, _ in asked],
        [question for question, _ in asked],
        lambda q, texts: [float(smollm_model.is_right(asked[q][1], text)) for text in texts],
        rollouts=rollouts,
        max_new_tokens=max_new_tokens,
        skip_dead=True,
        meter=GradientMeter(model, batch_rows=4),
        progress=lambda done, total: print(f"{done}/{total} {time.time() - start:.0f} s", flush=True),
    )
    for pool in running:
        pools.append(pool)
        save_pools(OUT, pools)
        print(f"  {pool.prompt_id}: p {pool.mean_reward:.2f}, {pool.lengths.mean():.1f} tokens", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
