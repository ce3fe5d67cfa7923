#!/usr/bin/env python3
"""Seconds per step and resident memory of the default predictor as the number of known prompts grows.

    python benchmarks/prediction_speed.py [--million] [--out benchmarks/results/prediction_speed.json]

One step = predict + solve (RLOO, 8 rollouts a prompt, 3 <= n <= 32) + observe, after five steps of warm-up; the
median of 30. Embeddings are random float16 (N, 384); texts, where given, are synthetic problems of about 30 words.
Times are wall-clock and CPU (the latter is what an idle machine would show on a single thread).
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import subprocess
import time
from pathlib import Path

import numpy as np

from viprl import RLOO, CalibratedPredictor, solve_allocation

GROUP = 8


def resident_megabytes() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return float("nan")


def synthetic_texts(count: int, rng: np.random.Generator) -> list[str]:
    words = np.array([f"word{i}" for i in range(2000)])
    picks = rng.zipf(1.4, size=(count, 30)) % len(words)
    return [" ".join(words[row]) + f" = {row[0]}?" for row in picks]


def measure(prompts: int, batch: int, with_texts: bool, steps: int = 30) -> dict[str, float]:
    rng = np.random.default_rng(0)
    embeddings = np.empty((prompts, 384), np.float16)
    for start in range(0, prompts, 50_000):
        part = embeddings[start : start + 50_000]
        part[:] = rng.standard_normal(part.shape, dtype=np.float32) / 20
    texts = synthetic_texts(prompts, rng) if with_texts else None
    ids = [f"prompt-{i}" for i in range(prompts)]
    started = time.perf_counter()
    predictor = CalibratedPredictor(embeddings, prompt_ids=ids, texts=texts)
    setup = time.perf_counter() - started
    truth = rng.beta(0.3, 0.45, prompts)
    order = rng.permutation(prompts)
    wall, cpu = [], []
    for step in range(steps + 5):
        at = step * batch % max(1, prompts - batch)
        rows = order[at : at + batch]
        names = [ids[int(i)] for i in rows]
        outcome = rng.random((batch, 32)) < truth[rows, None]
        start_wall, start_cpu = time.perf_counter(), time.process_time()
        prediction = predictor.predict(names)
        n = solve_allocation(RLOO(), prediction, budget=GROUP * batch, min_group_size=3, max_group_size=32)
        middle_wall, middle_cpu = time.perf_counter(), time.process_time()
        k = np.array([outcome[i, : n[i]].sum() for i in range(batch)], float)  # the rollouts: not timed
        again_wall, again_cpu = time.perf_counter(), time.process_time()
        predictor.observe(names, k, n)
        end_wall, end_cpu = time.perf_counter(), time.process_time()
        wall.append(middle_wall - start_wall + end_wall - again_wall)
        cpu.append(middle_cpu - start_cpu + end_cpu - again_cpu)
    gc.collect()
    return {
        "prompts": prompts,
        "batch": batch,
        "texts": with_texts,
        "setup_seconds": round(setup, 2),
        "step_ms": round(1e3 * float(np.median(wall[5:])), 2),
        "step_ms_worst": round(1e3 * float(np.max(wall[5:])), 2),
        "step_cpu_ms": round(1e3 * float(np.median(cpu[5:])), 2),
        "resident_mb": round(resident_megabytes(), 0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--million", action="store_true", help="also a million prompts (about a minute, 1.3 GB)")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    cases = [(1_700, 512, True), (17_000, 512, False), (17_000, 512, True), (170_000, 1024, False)]
    cases += [(1_000_000, 1024, False)] if arguments.million else []
    rows = []
    for case in cases:
        rows.append(measure(*case))
        print("  ".join(f"{k}={v}" for k, v in rows[-1].items()), flush=True)
    if arguments.out:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        load = Path("/proc/loadavg").read_text().split()[0]
        report = {
            "machine": f"{platform.machine()}, load average {load}",
            "python": platform.python_version(),
            "numpy": np.__version__,
            "commit": commit,
            "seed": 0,
            "rows": rows,
        }
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
