#!/usr/bin/env python3
"""Milliseconds per solved allocation for convex curves, and agreement with a heap.

    python benchmarks/allocation_speed.py [--out benchmarks/results/allocation_speed.json]

8 rollouts a prompt, 3 <= n <= 32, success probabilities from Beta(.4, .5), seed 0; the whole ``solve_allocation`` call
(validation included) is timed. Medians, wall-clock and CPU: the latter is what an idle machine shows, the load of the
machine at the time is kept with the results. "own bounds" gives every prompt its own L in 3..6 and U in 20..44.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from viprl.allocation import round_sizes, solve_allocation, solve_relaxation
from viprl.allocation.problem import AllocationProblem
from viprl.variance import RLOO, DrGRPO

GROUP, LOWER, UPPER = 8, 3, 32


def timed(call: Callable[[], Any], repeats: int) -> dict[str, float]:
    wall, cpu = [], []
    for _ in range(repeats):
        start_wall, start_cpu = time.perf_counter(), time.process_time()
        call()
        cpu.append(time.process_time() - start_cpu)
        wall.append(time.perf_counter() - start_wall)
    return {
        "wall_ms": round(1e3 * float(np.median(wall)), 3),
        "cpu_ms": round(1e3 * float(np.median(cpu)), 3),
        "best_ms": round(1e3 * min(wall), 3),
    }


def heap(weight: Any, gain: Any, budget: int, lower: Any, upper: Any) -> Any:
    """One rollout at a time to the largest marginal gain: slow, obviously right."""
    sizes, table = lower.copy(), gain(np.arange(1, int(upper.max()) + 1))
    queue = [(-weight[q] * table[sizes[q] - 1], q) for q in range(len(sizes))]
    heapq.heapify(queue)
    for _ in range(budget - int(sizes.sum())):
        _, q = heapq.heappop(queue)
        sizes[q] += 1
        if sizes[q] < upper[q]:
            heapq.heappush(queue, (-weight[q] * table[sizes[q] - 1], q))
    return sizes


def measure(model: Any, batch: int, own_bounds: bool) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    p = rng.beta(0.4, 0.5, batch)
    weight, budget = p * (1 - p), GROUP * batch
    lower = rng.integers(3, 7, batch) if own_bounds else np.full(batch, LOWER)
    upper = rng.integers(20, 45, batch) if own_bounds else np.full(batch, UPPER)
    bounds = (lower, upper) if own_bounds else (LOWER, UPPER)
    row: dict[str, Any] = {"model": model.name, "prompts": batch, "rollouts": budget, "own_bounds": own_bounds}
    row |= timed(lambda: solve_allocation(model, weight, budget, *bounds), 501 if batch < 10_000 else 9)
    sizes = solve_allocation(model, weight, budget, *bounds)
    if batch <= 100_000:
        row["identical_to_heap"] = bool(np.array_equal(sizes, heap(weight, model.marginal_gain, budget, lower, upper)))
    if batch <= 1_000:
        problem = AllocationProblem.build(batch, budget, *bounds)

        def relaxed() -> Any:
            return round_sizes(model, weight, solve_relaxation(model, weight, budget, *bounds).sizes, problem)

        row["relaxation"] = timed(relaxed, 51)
        row["relaxation"]["excess"] = float((weight * (model.factor(relaxed()) - model.factor(sizes))).sum())
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "allocation_speed.json")
    args = parser.parse_args()
    rows = []
    for model in (RLOO(), DrGRPO()):
        for batch in (512, 17_000, 100_000, 1_000_000):
            for own_bounds in (False, True):
                rows.append(measure(model, batch, own_bounds))
                print(json.dumps(rows[-1]), flush=True)
    result = {"machine": machine(), "seed": 0, "rows": rows}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """Where and when: processor, load, versions, commit."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "cpu": next(
            (line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine()
        ),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "commit": commit.stdout.strip(),
    }


if __name__ == "__main__":
    main()
