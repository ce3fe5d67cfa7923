"""The ablation of the paper's Table 3 on the arithmetic model: ``python run.py --seeds 0 1 2 [--cells NAME...]``.

One line of results/runs.jsonl per run; runs that are there already are skipped, so the script can be stopped and
started again, or run twice at once on different seeds (``--out``). A cell is
PREDICTOR-ALLOCATION-VARIANCE-WEIGHTING-MEAN, such as ``beta-exact-paper-equal-8``; ``--list`` prints all. Cells that
could not differ are left out: uniform groups need no predictor, and the two heuristics read no variance.
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
from predictors import PREDICTORS
from tinyrl import TinyRun, completions

from viprl.tasks.arithmetic import ArithmeticTask
from viprl.variance import OutcomeMoments

RESULTS = Path(__file__).parent / "results"
PROMPTS, HELD_OUT, BATCH, STEPS, SAMPLES, EVERY = 512, 128, 32, 100, 16, 25
COMPARED = ("gp", "ridge", "beta", "default")
ALLOCATIONS = ("exact", "inverse_accuracy", "inverse_variance")


def cells() -> list[str]:
    names = []
    for mean in (8, 16):
        for weighting in ("equal", "rollout"):
            names.append(f"none-uniform-paper-{weighting}-{mean}")
            for predictor in COMPARED:
                names += [f"{predictor}-exact-{variance}-{weighting}-{mean}" for variance in ("paper", "learned")]
                names += [f"{predictor}-{a}-paper-{weighting}-{mean}" for a in ALLOCATIONS[1:]]
    # equal and rollout weights are the same thing for equal groups
    return [n for n in names if not n.startswith("none-uniform-paper-rollout")]


def make_run(cell: str, prompts: list[str], answers: list[str]) -> tuple[TinyRun, int]:
    """The training loop of a cell, and its rollouts per prompt."""
    predictor, allocation, variance, weighting, mean = cell.split("-")
    model, tokenizer = stages.load("noisy")
    policies = {"exact": viprl.VIP, "uniform": viprl.Uniform, **viprl.allocation.POLICIES}
    allocator = viprl.RolloutAllocator(
        PREDICTORS["beta" if predictor == "none" else predictor](prompts),
        OutcomeMoments() if variance == "learned" else viprl.RLOO(),
        policy=policies[allocation](),
        min_group_size=3,
        max_group_size=4 * int(mean),
        guard=predictor == "default",
    )
    run = TinyRun(
        model, tokenizer, prompts, answers, allocator=allocator, weighting=weighting,
        record_norms=variance == "learned", layers="default",
    )  # fmt: skip
    return run, int(mean)


def train(cell: str, seed: int, steps: int) -> dict:
    task = ArithmeticTask(train_size=PROMPTS, test_size=HELD_OUT)
    data, test = task.train_dataset(), task.test_dataset()
    prompts, start = list(data["prompt"]), time.process_time()
    run, mean = make_run(cell, prompts, list(data["answer"]))
    rng, order, curve, errors, ratios, spent, guarded = random.Random(seed), [], [], [], [], {}, 0
    for step in range(1, steps + 1):
        torch.manual_seed((1 + seed) * 100_003 + step)
        if len(order) < BATCH:
            order = rng.sample(prompts, len(prompts))
        batch, order = order[:BATCH], order[BATCH:]
        predicted = run.allocator.predict(batch).mean
        guarded += run.allocator.guard_holding
        record = run.step(batch, BATCH * mean)
        for name, seconds in record.seconds.items():
            spent[name] = spent.get(name, 0.0) + seconds
        starts = np.concatenate([[0], np.cumsum(record.group_sizes)[:-1]])
        rates = np.add.reduceat(record.rewards, starts) / record.group_sizes
        errors.append(round(float(np.abs(predicted - rates).mean()), 4))
        ratios.append(round(realised_ratio(rates, record.group_sizes, mean), 4))
        if step % EVERY == 0:
            torch.manual_seed(99)  # the same evaluation noise for all cells
            texts = completions(run.model, run.tokenizer, list(test["prompt"]), SAMPLES)
            curve.append({"step": step, **scores(texts, list(test["answer"]))})
    return {
        "cell": cell, "seed": seed, "steps": steps, "curve": curve, "prediction_error": errors, "ratio": ratios,
        "seconds": {name: round(value, 3) for name, value in spent.items()},
        "cpu": round(time.process_time() - start, 1), "guarded": round(guarded / steps, 3),
    }  # fmt: skip


def realised_ratio(rates: np.ndarray, sizes: np.ndarray, mean: int) -> float:
    """Sum of unbiased p(1-p) / (n-1), relative to uniform groups."""
    spread = rates * (1 - rates) * sizes / (sizes - 1)
    return float((spread / (sizes - 1)).sum() / max((spread / (mean - 1)).sum(), 1e-12))


def scores(texts: list[list[str]], answers: list[str]) -> dict[str, float]:
    """Mean@16, Pass@8 and Maj@8 of held-out completions (N lists of SAMPLES)."""
    k = SAMPLES // 2
    right = [sum(text == answer for text in own) for own, answer in zip(texts, answers, strict=True)]
    majority = [viprl.evaluation.maj_at_k(own, a, k) for own, a in zip(texts, answers, strict=True)]
    return {
        "mean": float(np.mean(right)) / SAMPLES,
        f"pass@{k}": float(np.mean(viprl.evaluation.pass_at_k(SAMPLES, right, k))),
        f"maj@{k}": float(np.mean(majority)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cells", nargs="+", default=None)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=RESULTS / "runs.jsonl")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if args.list:
        print("\n".join(cells()))
        return
    unknown = sorted(set(args.cells or ()) - set(cells()))
    if unknown:
        raise SystemExit(f"cells must be among those of --list, but got {unknown}")
    torch.set_num_threads(1)
    args.out.parent.mkdir(exist_ok=True)
    done = set()
    for path in args.out.parent.glob("*.jsonl"):
        done |= {(r["cell"], r["seed"], r["steps"]) for r in map(json.loads, path.read_text().splitlines())}
    for seed in args.seeds:  # all cells of one seed first, so that a stopped script leaves whole comparisons
        for cell in args.cells or cells():
            if (cell, seed, args.steps) in done:
                continue
            result = train(cell, seed, args.steps)
            with args.out.open("a") as file:
                file.write(json.dumps(result) + "\n")
            print(cell, seed, result["curve"][-1], f"{result['cpu']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
