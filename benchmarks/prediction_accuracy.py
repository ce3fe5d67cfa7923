#!/usr/bin/env python3
"""How well the predictors do on a recorded run and on a pool of prompts with known rates.

    python benchmarks/prediction_accuracy.py --data ../shared/data [--out benchmarks/results/prediction_accuracy.json]

Log: each recorded step is predicted, scored, then observed in full (128 prompts, 8 rollouts each).
Pool: two epochs in a seeded random order, batches of 512, 8 x 512 rollouts allocated by E[p(1-p)] with 3 <= n <= 32
(RLOO), rewards drawn from the known rates; mean over seeds.
Scores: nll = log loss per rollout; ratio = sum of RLOO variances over the same with 8 rollouts each (below 1 is
better); calibration = error over 10 equal-width bins of the mean.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from viprl import RLOO, CalibratedPredictor, DiscountedBeta, LastRate, solve_allocation

LOWER, UPPER, GROUP = 3, 32, 8
Make = Callable[..., Any]
BASELINES: dict[str, Make] = {
    "discounted Beta": lambda *_, prompt_ids, **__: DiscountedBeta(prompt_ids),
    "last rate": lambda *_, prompt_ids, **__: LastRate(prompt_ids),
}


def log_loss(mean: np.ndarray, rate: np.ndarray) -> np.ndarray:
    p = np.clip(mean, 1e-3, 1 - 1e-3)
    return -(rate * np.log(p) + (1 - rate) * np.log(1 - p))


def calibration_error(mean: np.ndarray, rate: np.ndarray, bins: int = 10) -> float:
    place = np.minimum((mean * bins).astype(int), bins - 1)
    count = np.bincount(place, minlength=bins)
    gap = np.abs(np.bincount(place, mean, bins) - np.bincount(place, rate, bins))
    return float(gap.sum() / count.sum())


def allocate(prediction: Any) -> np.ndarray:
    budget = GROUP * len(prediction)
    return solve_allocation(RLOO(), prediction, budget=budget, min_group_size=LOWER, max_group_size=UPPER)


def replay_log(
    make: Make,
    data: Path,
    *,
    side: bool = False,
    texts: bool = True,
    shuffle: int | None = None,
    outage: range = range(0),
) -> dict[str, float]:
    """Scores on the recorded run; steps in ``outage`` are observed with all rewards zero but scored as recorded."""
    prompts = pd.read_parquet(data / "oneshot_rlvr_prompts.parquet")
    visits = pd.read_parquet(data / "oneshot_rlvr_visits_first250.parquet")
    embeddings = np.load(data / "oneshot_rlvr_minilm.npy")
    if shuffle is not None:
        embeddings = embeddings[np.random.default_rng(shuffle).permutation(len(embeddings))]
    predictor = make(
        embeddings,
        prompt_ids=prompts["prompt_id"].tolist(),
        texts=prompts["prompt_text"].tolist() if texts else None,
        side_information={"other model": prompts["passrate_other_model"]} if side else None,
    )
    seen: set[str] = set()
    found: dict[bool, list[tuple[np.ndarray, np.ndarray]]] = {True: [], False: []}
    spent = uniform = 0.0
    for number, step in visits.groupby("step", sort=True):
        step = step.drop_duplicates("prompt_id")
        ids = step["prompt_id"].tolist()
        k, n = step["successes"].to_numpy(float), step["n_rollouts"].to_numpy(float)
        prediction = predictor.predict(ids)
        cold = np.array([i not in seen for i in ids])
        for kind in (True, False):
            found[kind].append((prediction.mean[cold == kind], (k / n)[cold == kind]))
        if not cold.any():
            observed = k * (n - k) / (n * (n - 1))
            spent += (observed / (allocate(prediction) - 1)).sum()
            uniform += (observed / (GROUP - 1)).sum()
        predictor.observe(ids, np.zeros_like(k) if number in outage else k, n)
        seen.update(ids)
    first, later = (tuple(map(np.concatenate, zip(*found[kind], strict=True))) for kind in (True, False))
    return {
        "first nll": float(log_loss(*first).mean()),
        "first calibration": calibration_error(*first),
        "later nll": float(log_loss(*later).mean()),
        "later calibration": calibration_error(*later),
        "ratio": spent / uniform,
    }


def replay_pool(
    make: Make,
    data: Path,
    *,
    seeds: Sequence[int] = (3, 4, 5),
    texts: bool = True,
    shuffle: int | None = None,
    batch: int = 512,
) -> dict[str, float]:
    """Scores on the pool, mean over seeds."""
    pool = pd.read_parquet(data / "deepscaler_passrate_dev.parquet")
    embeddings = np.load(data / "deepscaler_passrate_dev_minilm.npy")
    if shuffle is not None:
        embeddings = embeddings[np.random.default_rng(shuffle).permutation(len(embeddings))]
    truth = ((pool["successes"] + 0.25) / (pool["n_rollouts"] + 0.5)).to_numpy()
    ids, words = pool["prompt_id"].tolist(), pool["prompt_text"].tolist() if texts else None
    runs = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        predictor = make(embeddings, prompt_ids=ids, texts=words, side_information=None)
        scores: dict[str, float] = {}
        for epoch in (1, 2):
            order, means, rates = rng.permutation(len(truth)), [], []
            spent = uniform = 0.0
            for start in range(0, len(truth) - batch + 1, batch):
                rows = order[start : start + batch]
                p = truth[rows]
                prediction = predictor.predict([ids[i] for i in rows])
                n = allocate(prediction)
                means.append(prediction.mean)
                rates.append(p)
                spent += (p * (1 - p) / (n - 1)).sum()
                uniform += (p * (1 - p) / (GROUP - 1)).sum()
                predictor.observe([ids[i] for i in rows], rng.binomial(n, p).astype(float), n)
            mean, rate = np.concatenate(means), np.concatenate(rates)
            scores |= {
                f"epoch {epoch} nll": float(log_loss(mean, rate).mean()),
                f"epoch {epoch} ratio": spent / uniform,
                f"epoch {epoch} calibration": calibration_error(mean, rate),
            }
        runs.append(scores)
    return {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    data, started = arguments.data, time.process_time()
    default = CalibratedPredictor
    cases: dict[str, Callable[[], dict[str, float]]] = {
        "log": lambda: replay_log(default, data),
        "log, with the other model's pass rate": lambda: replay_log(default, data, side=True),
        "log, embeddings without texts": lambda: replay_log(default, data, texts=False),
        "log, embeddings shuffled": lambda: replay_log(default, data, shuffle=0),
        "log, embeddings shuffled, no texts": lambda: replay_log(default, data, shuffle=0, texts=False),
        "log, steps 120 to 139 all zero": lambda: replay_log(default, data, outage=range(120, 140)),
        "log, steps 5 to 24 all zero": lambda: replay_log(default, data, outage=range(5, 25)),
        "pool": lambda: replay_pool(default, data),
        "pool, embeddings without texts": lambda: replay_pool(default, data, texts=False),
        "pool, embeddings shuffled, no texts": lambda: replay_pool(default, data, shuffle=0, texts=False),
    }
    for name, make in BASELINES.items():
        cases[f"log, {name}"] = lambda make=make: replay_log(make, data)
        cases[f"pool, {name}"] = lambda make=make: replay_pool(make, data)
    results = {}
    for name, run in cases.items():
        results[name] = run()
        print(f"{name:42s} " + "  ".join(f"{k} {v:.4f}" for k, v in results[name].items()), flush=True)
    if arguments.out:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        report = {
            "machine": f"{platform.machine()}, {platform.processor() or platform.system()}",
            "python": platform.python_version(),
            "numpy": np.__version__,
            "commit": commit,
            "seeds": [3, 4, 5],
            "cpu_seconds": round(time.process_time() - started, 1),
            "results": results,
        }
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
