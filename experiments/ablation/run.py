"""The ablation of the paper's Table 3 on the arithmetic model: ``python run.py [--seeds 0 1 2] [--cells NAME...]``.

One line of results/runs.jsonl per run; runs that are there already are skipped, so the script can be stopped and
started again. A cell is PREDICTOR-ALLOCATION-VARIANCE-WEIGHTING-MEAN, such as ``beta-exact-paper-equal-8``; ``--list``
prints all. Cells on which the design says nothing new are not run: uniform groups need no predictor, and the two
heuristics read no variance.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch

import viprl

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gradient"))
import stages
from tinyrl import TinyRun, success_rates

from viprl.tasks.arithmetic import ArithmeticTask
from viprl.variance import OutcomeMoments

RESULTS = Path(__file__).parent / "results"
PROMPTS, HELD_OUT, BUDGET, STEPS, SAMPLES = 512, 128, 256, 100, 16
PREDICTORS = ("gp", "ridge", "beta", "default")
ALLOCATIONS = ("exact", "inverse_accuracy", "inverse_variance")


def cells() -> list[str]:
    names = []
    for mean in (8, 16):
        for weighting in ("equal", "rollout"):
            names.append(f"none-uniform-paper-{weighting}-{mean}")
            for predictor in PREDICTORS:
                names += [f"{predictor}-exact-{variance}-{weighting}-{mean}" for variance in ("paper", "learned")]
                names += [f"{predictor}-{a}-paper-{weighting}-{mean}" for a in ALLOCATIONS[1:]]
    # equal and rollout weights are the same thing for equal groups
    return [n for n in names if not n.startswith("none-uniform-paper-rollout")]


def make_predictor(name: str, prompts: list[str]):
    if name in ("none", "beta"):
        return viprl.DiscountedBeta(prompts)
    if name == "default":
        return viprl.CalibratedPredictor(None, prompt_ids=prompts, texts=prompts)
    embeddings = digit_features(prompts)
    if name == "gp":
        return viprl.GaussianProcessPredictor(embeddings, prompt_ids=prompts)
    return viprl.Ridge(embeddings, prompt_ids=prompts)


def digit_features(prompts: list[str]) -> np.ndarray:
    """(N, 64) one-hot digits by place of both terms: MiniLM says nothing about sums, these do."""
    rows = np.zeros((len(prompts), 64), dtype=np.float32)
    for i, prompt in enumerate(prompts):
        for term, text in enumerate(prompt.rstrip("=").split("+")):
            for place, digit in enumerate(reversed(text)):
                rows[i, term * 30 + place * 10 + int(digit)] = 1.0
            rows[i, 60 + term] = len(text) / 3
    return rows


def run(cell: str, seed: int, steps: int) -> dict:
    predictor, allocation, variance, weighting, mean = cell.split("-")
    group = int(mean)
    torch.manual_seed(1000 + seed)
    model, tokenizer = stages.load("noisy")
    task = ArithmeticTask(train_size=PROMPTS, test_size=HELD_OUT)
    train, test = task.train_dataset(), task.test_dataset()
    prompts = list(train["prompt"])
    policies = {"exact": viprl.VIP, "uniform": viprl.Uniform, **viprl.allocation.POLICIES}
    allocator = viprl.RolloutAllocator(
        make_predictor(predictor, prompts),
        OutcomeMoments() if variance == "learned" else viprl.RLOO(),
        policy=policies[allocation](),
        min_group_size=3,
        max_group_size=4 * group,
        guard=predictor == "default",
    )
    trainer = TinyRun(
        model, tokenizer, prompts, list(train["answer"]), allocator=allocator, weighting=weighting,
        record_norms=variance == "learned", layers="default",
    )  # fmt: skip
    rng, order, curve, errors, spent = random.Random(seed), [], [], [], {}
    batch_size, start = BUDGET // group, time.perf_counter()
    for step in range(1, steps + 1):
        if len(order) < batch_size:
            order = rng.sample(prompts, len(prompts))
        batch, order = order[:batch_size], order[batch_size:]
        predicted = allocator.predict(batch).mean
        record = trainer.step(batch, BUDGET)
        for name, seconds in record.seconds.items():
            spent[name] = spent.get(name, 0.0) + seconds
        starts = np.concatenate([[0], np.cumsum(record.group_sizes)[:-1]])
        rates = np.add.reduceat(record.rewards, starts) / record.group_sizes
        errors.append(float(np.abs(predicted - rates).mean()))
        if step % 25 == 0:
            torch.manual_seed(99)  # the same evaluation noise for all cells
            rewards = success_rates(model, tokenizer, list(test["prompt"]), list(test["answer"]), SAMPLES)
            curve.append({"step": step, **scores(rewards), "seconds": time.perf_counter() - start})
            torch.manual_seed(1000 + seed + 7919 * step)
    return {
        "cell": cell, "seed": seed, "steps": steps, "curve": curve, "prediction_error": errors, "seconds": spent,
        "wall": time.perf_counter() - start, "metrics": allocator.metrics(),
    }  # fmt: skip


def scores(rewards: np.ndarray) -> dict[str, float]:
    """Mean@k and Pass@k (k = SAMPLES // 2, unbiased) of held-out rewards (N, samples)."""
    k = SAMPLES // 2
    counts = rewards.sum(1)
    passes = [viprl.evaluation.pass_at_k(SAMPLES, int(c), k) for c in counts]
    return {"mean": float(rewards.mean()), f"pass@{k}": float(np.mean(passes))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cells", nargs="+", default=None)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if args.list:
        print("\n".join(cells()))
        return
    torch.set_num_threads(1)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "runs.jsonl"
    done = set()
    if path.exists():
        done = {(r["cell"], r["seed"], r["steps"]) for r in map(json.loads, path.read_text().splitlines())}
    for seed in args.seeds:  # all cells of one seed first, so that a stopped script leaves whole comparisons
        for cell in args.cells or cells():
            if (cell, seed, args.steps) in done:
                continue
            result = run(cell, seed, args.steps)
            with path.open("a") as file:
                file.write(json.dumps(result) + "\n")
            print(cell, seed, result["curve"][-1], f"{result['wall']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
