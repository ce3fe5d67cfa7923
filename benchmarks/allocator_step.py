"""Time and memory of one whole step (predict, solve, observe) of the default allocator as the prompt pool grows.

    python benchmarks/allocator_step.py [--sizes 1000 17000 100000 1000000] [--out benchmarks/results]

Each size runs in a process of its own, so that the resident memory is that of the size alone. Embeddings are random
float16 unit vectors (N, 384); texts are left out. Prints a table and writes it as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import viprl

SEED = 0
STEPS = 40


def one_size(prompts: int, batch: int) -> dict[str, float]:
    """Median times in milliseconds over STEPS steps, half of them on prompts seen before."""
    rng = np.random.default_rng(SEED)
    embeddings = np.empty((prompts, 384), np.float16)
    for start in range(0, prompts, 10_000):
        block = rng.standard_normal((min(10_000, prompts - start), 384), dtype=np.float32)
        embeddings[start : start + len(block)] = block / np.linalg.norm(block, axis=1, keepdims=True)
    ids = [f"prompt-{i}" for i in range(prompts)]
    truth = rng.beta(0.5, 0.5, prompts)
    start = time.perf_counter()
    predictor = viprl.CalibratedPredictor(embeddings, prompt_ids=ids)
    setup = time.perf_counter() - start
    allocator = viprl.RolloutAllocator(predictor, viprl.RLOO())
    pool = rng.permutation(prompts)[: batch * STEPS // 2] if prompts > batch * STEPS // 2 else rng.permutation(prompts)
    times: dict[str, list[float]] = {"predict": [], "allocate": [], "observe": [], "save": []}
    for _ in range(STEPS):
        rows = rng.choice(pool, batch, replace=False)
        batch_ids = [ids[r] for r in rows]
        clock = [time.perf_counter()]
        predictor.predict(batch_ids)
        clock.append(time.perf_counter())
        plan = allocator.allocate(batch_ids, 8 * batch)
        clock.append(time.perf_counter())
        rewards = [(rng.random(n) < truth[r]).astype(float) for r, (_, n) in zip(rows, plan, strict=True)]
        clock.append(time.perf_counter())
        allocator.observe(plan, rewards)
        clock.append(time.perf_counter())
        for name, a, b in (("predict", 0, 1), ("allocate", 1, 2), ("observe", 3, 4)):
            times[name].append(1000 * (clock[b] - clock[a]))
    start = time.perf_counter()
    allocator.save("/dev/shm/viprl-benchmark.ckpt" if Path("/dev/shm").is_dir() else "viprl-benchmark.ckpt")
    saved = 1000 * (time.perf_counter() - start)
    step = np.array(times["allocate"]) + np.array(times["observe"])
    return {
        "prompts": prompts,
        "batch": batch,
        "setup_s": setup,
        **{f"{name}_ms": float(np.median(times[name])) for name in ("predict", "allocate", "observe")},
        "step_ms": float(np.median(step)),
        "step_p90_ms": float(np.quantile(step, 0.9)),
        "save_ms": saved,
        "resident_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 17_000, 100_000, 1_000_000])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one_size(args.one, 1024 if args.one >= 1_000_000 else 512)))
        return
    rows = []
    for size in args.sizes:
        done = subprocess.run(
            [sys.executable, __file__, "--one", str(size)], check=True, capture_output=True, text=True
        )
        rows.append(json.loads(done.stdout))
        print({name: round(value, 1) for name, value in rows[-1].items()}, flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "commit": commit.stdout.strip(),
        "seed": SEED,
        "steps": STEPS,
        "rows": rows,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "allocator_step.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
