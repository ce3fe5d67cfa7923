#!/usr/bin/env python3
"""A log of 1,000,000 visits over 100,000 prompts: time and memory of reading it and replaying two rules.

    python benchmarks/replay_scale.py [--visits 1000000] [--prompts 100000] [--batch 512] [--out benchmarks/results/...]

The log is made first (not timed): success probabilities from Beta(0.4, 0.5) that drift slowly upwards, 8 rollouts a
visit, every prompt visited once an epoch. Timed is the command a user would run, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd


def make_log(path: Path, visits: int, prompts: int, batch: int) -> None:
    rng = np.random.default_rng(0)
    rate = np.clip(rng.beta(0.4, 0.5, prompts), 1e-4, 1 - 1e-4)
    logit = np.log(rate) - np.log1p(-rate)
    epochs = -(-visits // prompts)
    rows = np.concatenate([rng.permutation(prompts) for _ in range(epochs)])[:visits]
    p = 1 / (1 + np.exp(-(logit[rows] + 0.05 * (np.arange(visits) // prompts))))
    frame = pd.DataFrame(
        {
            "step": np.arange(visits) // batch,
            "prompt_id": np.char.add("prompt-", rows.astype(str)),
            "successes": rng.binomial(8, p),
            "n_rollouts": 8,
        }
    )
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=True)


def run(log: Path, rules: str, jobs: int, out: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "viprl.cli", "replay", str(log), "--rules", rules, "--jobs", str(jobs)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    process = subprocess.Popen([*command, "--out", str(out)], stdout=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        peak = max(peak, _tree_memory(process.pid))
        time.sleep(0.2)
    wall = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(f"the replay ended with status {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_seconds": round(wall, 1), "cpu_seconds": round(cpu, 1), "peak_gb": round(peak / 1e9, 2)}


def _tree_memory(pid: int) -> int:
    """Proportional memory of a process and its children, in bytes (shared pages are counted once)."""
    total = 0
    for process in [pid, *_children(pid)]:
        try:
            for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except OSError:
            continue
    return total


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--visits", type=int, default=1_000_000)
    parser.add_argument("--prompts", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rules", default="uniform,vip:calibrated,vip:beta")
    parser.add_argument("--suffix", choices=[".parquet", ".jsonl"], default=".jsonl")
    parser.add_argument("--out", type=Path, help="write the result here (JSON)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / f"log{args.suffix}"
        make_log(log, args.visits, args.prompts, args.batch)
        result = run(log, args.rules, args.jobs, Path(folder) / "report")
        report = json.loads((Path(folder) / "report" / "report.json").read_text())
    rows = report["rules"][report["headline_phase"]]
    result |= {
        "visits": args.visits,
        "prompts": args.prompts,
        "batch": args.batch,
        "format": args.suffix,
        "jobs": args.jobs,
        "rules": {row["rule"]: round(row["ratio"]["estimate"], 4) for row in rows},
        "milliseconds_a_step": {row["rule"]: round(row["milliseconds"], 1) for row in rows},
        "load_average": round(os.getloadavg()[0], 1),
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}",
    }
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
