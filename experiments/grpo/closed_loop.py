"""Std-normalised GRPO on the arithmetic model at equal rollouts: uniform groups against what could be minimised.

    python closed_loop.py run --warm FOLDER --objectives uniform rloo signal --rates 1e-4 2e-4 --seeds 0 1
    python closed_loop.py table

1,024 additions, of which a share (--dead) are sums of three numbers that the model cannot learn; 32 prompts of 8
rollouts a step, L = 3, U = 32, default predictor, no guard, AdamW. Every line of results/closed_loop.jsonl is a run; a
run that is there is not repeated. The warm start is made on first use.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from objectives import candidates

import viprl
from viprl.tasks import warm_start
from viprl.tasks.arithmetic import ArithmeticTask

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "gradient"))
import tinyrl  # noqa: E402

RESULTS = HERE / "results" / "closed_loop.jsonl"
PROMPTS, BATCH, GROUP, EVERY, TESTS = 1024, 32, 8, 25, 8
ERRORS = (0.02, 0.05, 0.3, 0.6, 0.85, 0.95, 0.98, 0.99, 0.99, 0.995)


def teacher(additions: Any, *, seed: int) -> list[tuple[str, str]]:
    """Answers that are wrong with a chance that grows with the last digit of the second term."""
    rng = random.Random(f"teacher/{seed}")
    found = []
    for a, b in additions:
        wrong = rng.random() < ERRORS[b % 10]
        found.append((f"{a}+{b}=", str(max(0, a + b + rng.choice((1, 2, -1, 10)))) if wrong else str(a + b)))
    return found


def load_warm(folder: Path) -> tuple[Any, Any]:
    """(model, tokenizer), trained where the folder does not exist."""
    from transformers import AutoTokenizer, LlamaForCausalLM

    if not folder.exists():
        warm_start.teacher_answers = teacher
        for part in warm_start.train_warm_start(warm_start.WarmStart(teacher_steps=300)):
            part.save_pretrained(folder)
    return LlamaForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def pool(dead: float) -> tuple[list[str], list[str]]:
    """Prompts and answers; the dead ones are three-number sums with an answer that is never given."""
    data = ArithmeticTask(train_size=PROMPTS, test_size=192, seed=0).train_dataset()
    rng, extra = random.Random(7), []
    while len(extra) < int(PROMPTS * dead):
        extra.append("+".join(str(rng.randrange(100, 1000)) for _ in range(3)) + "=")
    keep = PROMPTS - len(extra)
    return list(data["prompt"])[:keep] + extra, list(data["answer"])[:keep] + ["="] * len(extra)


def train(objective: str, rate: float, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """One run: success on held-out prompts and live groups, every 25 steps."""
    started = time.process_time()
    model, tokenizer = load_warm(args.warm)
    prompts, answers = pool(args.dead)
    test = ArithmeticTask(train_size=PROMPTS, test_size=192, seed=0).test_dataset()
    uniform = objective == "uniform"
    allocator = viprl.RolloutAllocator(
        viprl.CalibratedPredictor(None, prompt_ids=prompts, texts=prompts),
        viprl.RLOO() if uniform else candidates(GROUP)[objective],
        policy=viprl.Uniform() if uniform else viprl.VIP(),
        guard=False,
    )
    run = tinyrl.TinyRun(
        model, tokenizer, prompts, answers, allocator=allocator, estimator="grpo", learning_rate=rate
    )  # fmt: skip
    rng, order, curve, live = random.Random(seed), [], [], []
    for step in range(1, args.steps + 1):
        torch.manual_seed((1 + seed) * 100_003 + step)
        order = order if len(order) >= BATCH else order + rng.sample(prompts, len(prompts))
        batch, order = list(dict.fromkeys(order[:BATCH])), order[BATCH:]
        record = run.step(batch, GROUP * len(batch))
        counts = np.add.reduceat(record.rewards, np.cumsum(record.group_sizes) - record.group_sizes)
        live.append(float(np.mean((counts > 0) & (counts < record.group_sizes))))
        if step % EVERY == 0:
            torch.manual_seed(99)
            texts = tinyrl.completions(model, tokenizer, list(test["prompt"]), TESTS)
            right = np.mean([[t == a for t in own] for own, a in zip(texts, test["answer"], strict=True)])
            curve.append([step, round(float(right), 4), round(float(np.mean(live[-EVERY:])), 4)])
    return {
        "objective": objective, "learning_rate": rate, "seed": seed, "dead": args.dead, "curve": curve,
        "cpu_seconds": round(time.process_time() - started, 1),
    }  # fmt: skip


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["objective"], row["learning_rate"], row["seed"], row["dead"]


def read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def table() -> None:
    """End, area under the curve and live groups; differences to uniform paired by seed, 95 % intervals."""
    from scipy import stats

    rows = {key(row): row["curve"] for row in read()}
    print("| dead | learning rate | objective | seeds | held-out success | minus uniform | mean of the curve, minus "
          "uniform | live groups, ratio |\n|---|---|---|---|---|---|---|---|")  # fmt: skip
    for dead, rate, objective in sorted({(d, r, o) for o, r, _, d in rows}, key=lambda c: (c[:2], c[2] != "uniform")):
        seeds = [
            s for o, r, s, d in rows if (o, r, d) == (objective, rate, dead) and ("uniform", rate, s, dead) in rows
        ]
        ours, base = (np.array([rows[o, rate, s, dead] for s in seeds]) for o in (objective, "uniform"))
        words = [f"{dead}", f"{rate:g}", objective, str(len(seeds)), f"{ours[:, -1, 1].mean():.3f}"]
        for d in (ours[:, -1, 1] - base[:, -1, 1], (ours - base)[:, :, 1].mean(1)):
            half = stats.t.ppf(0.975, len(d) - 1) * d.std(ddof=1) / np.sqrt(len(d)) if len(d) > 1 else np.nan
            spread = f" +- {half:.3f}" if len(d) > 1 else ""
            words.append("" if objective == "uniform" else f"{d.mean():+.3f}{spread}")
        words.append(f"{ours[:, :, 2].mean() / base[:, :, 2].mean():.3f}")
        print("| " + " | ".join(words) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["run", "table"])
    parser.add_argument("--warm", type=Path, default=HERE / "warm")
    parser.add_argument("--objectives", nargs="+", default=["uniform", "rloo", "signal"])
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-4, 2e-4])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--dead", type=float, default=0.6)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.verb == "table":
        return table()
    RESULTS.parent.mkdir(exist_ok=True)
    for seed in args.seeds:
        for rate in args.rates:
            for objective in args.objectives:
                if (objective, rate, seed, args.dead) not in {key(row) for row in read()}:
                    row = train(objective, rate, seed, args)
                    with RESULTS.open("a") as file:
                        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
