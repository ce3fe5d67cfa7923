#!/usr/bin/env python3
"""Seconds per solved allocation where curves are not convex or rollouts have costs, and whether it is proven optimal.

    python benchmarks/allocation_nonconvex.py [--out benchmarks/results/allocation_nonconvex.json]

8 rollouts a prompt (or their cost), n <= 32, seed 0. "tokens" are whole costs of 100 to 4,000 per rollout. "gap" is the
relative distance between the result and the lower bound where optimality is not proven. The variance curves are
computed inside the timed call. Wall-clock and CPU seconds of one call.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from allocation_speed import machine

from viprl.allocation import solve_with_bound
from viprl.prediction import Prediction
from viprl.variance import GRPO, RLOO, BiasWarning, DrGRPO


def measure(batch: int, kind: str, model: Any, smallest: int, costs: bool) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    p = rng.beta(0.4, 0.5, batch)
    predictions = {"points": Prediction.point(p), "eighths": Prediction.point(np.round(8 * p) / 8)}
    prediction = predictions.get(kind) or Prediction.beta(rng.gamma(1, 2, batch) + 0.05, rng.gamma(1, 2, batch) + 0.05)
    cost = rng.integers(100, 4_001, batch) if costs else None
    budget = 8 * batch if cost is None else int(8 * cost.sum())
    wall, cpu = time.perf_counter(), time.process_time()
    solution = solve_with_bound(model, prediction, budget, smallest, 32, cost=cost)
    return {
        "model": model.name,
        "prompts": batch,
        "min_group_size": smallest,
        "prediction": kind,
        "costs": "tokens" if costs else None,
        "wall_s": round(time.perf_counter() - wall, 3),
        "cpu_s": round(time.process_time() - cpu, 3),
        "exact": solution.exact,
        "gap": round((solution.objective - solution.lower_bound) / max(solution.objective, 1e-12), 9),
        "method": solution.method,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "allocation_nonconvex.json")
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 5_000])
    args = parser.parse_args()
    warnings.simplefilter("ignore", BiasWarning)
    rows = []
    for batch in args.sizes:
        for model, smallest, costs in (
            (GRPO(), 3, False),
            (GRPO(), 1, False),
            (DrGRPO(), 1, False),
            (RLOO(), 3, True),
            (DrGRPO(), 1, True),
            (GRPO(), 3, True),
        ):
            for kind in ("points", "eighths", "beta"):
                rows.append(measure(batch, kind, model, smallest, costs))
                print(json.dumps(rows[-1]), flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"machine": machine(), "seed": 0, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
