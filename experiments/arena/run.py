"""Train the small model under selection policies, at equal generated rollouts.

    python run.py --cells uniform top4-64x4 --pools text live --seeds 0 1 2

One line of results.jsonl for each finished (pool, cell, learning rate, objective, seed); what is there is not run
again, so that the script may be stopped at any time. Seeds are the outer loop: partial results are already paired.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import time
from pathlib import Path

import numpy as np
import pools
import rules
import torch
from tree import TreePolicy
from world import OBJECTIVES, World, load

HERE = Path(__file__).resolve().parent


class Rates:
    """Success probabilities at the warm start, each list of prompts computed once and kept beside it."""

    def __init__(self, policy: TreePolicy, folder: Path) -> None:
        self.policy, self.folder = policy, folder

    def __call__(self, prompts: list[str], answers: list[str]) -> np.ndarray:
        key = hashlib.sha256(json.dumps([prompts, answers]).encode()).hexdigest()[:16]
        path = self.folder / f"{key}.npy"
        if not path.exists():
            parts = [slice(i, i + 256) for i in range(0, len(prompts), 256)]
            found = np.concatenate([self._some(prompts[part], answers[part]) for part in parts])
            self.folder.mkdir(exist_ok=True)
            scratch = path.with_suffix(f".{os.getpid()}.npy")
            np.save(scratch, found)
            scratch.rename(path)
        return np.load(path)

    def _some(self, prompts: list[str], answers: list[str]) -> np.ndarray:
        read = lambda texts: [self.policy.tokenizer(t)["input_ids"] for t in texts]  # noqa: E731
        return self.policy.probability(read(prompts), read(answers))


def train(cell: str, pool: pools.Pool, seed: int, args: argparse.Namespace, objective: str) -> dict[str, object]:
    """One run; curves of [generated rollouts, held-out success, pass@8, share of live groups, distinct prompts]."""
    torch.manual_seed(seed)
    start = time.process_time()
    world = World(load(args.warm), pool, args.rate, seed, objective)
    rule, curve, seen = rules.build(cell, world), [], []
    marks = [round(args.rollouts * i / args.points) for i in range(args.points + 1)]
    while True:
        while marks and world.generated >= marks[0]:
            p = world.held_out()
            live = float(np.mean([g.live for g in seen])) if seen else None
            distinct = len({g.prompt for g in seen})
            curve.append(
                [world.generated, round(float(p.mean()), 5), round(float((1 - (1 - p) ** 8).mean()), 5), live, distinct]
            )
            marks, seen = [m for m in marks if m > world.generated], []
        if world.generated >= args.rollouts:
            break
        seen += rule.step()
    return {
        "pool": args.pool,
        "cell": cell,
        "rate": args.rate,
        "objective": objective,
        "seed": seed,
        "updates": world.updates,
        "commit": args.commit,
        "machine": platform.machine(),
        "curve": curve,
        "cpu": round(time.process_time() - start, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", required=True)
    parser.add_argument("--pools", nargs="+", choices=pools.NAMES, default=["text", "live"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--objective", choices=OBJECTIVES, default="success")
    parser.add_argument("--rollouts", type=int, default=25_600)
    parser.add_argument("--points", type=int, default=10)
    parser.add_argument("--warm", type=Path, required=True)
    parser.add_argument("--commit", help="what to call the code in the rows; git is asked by default")
    parser.add_argument("--results", type=Path, default=HERE / "results.jsonl")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.commit is None:
        asked = ["git", "describe", "--always", "--dirty"]
        args.commit = subprocess.run(asked, cwd=HERE, capture_output=True, text=True, check=True).stdout.strip()
    key = lambda row: tuple(row[k] for k in ("pool", "cell", "rate", "objective", "seed"))  # noqa: E731
    lines = args.results.read_text().splitlines() if args.results.exists() else []
    done = {key(json.loads(line)) for line in lines}
    rates = Rates(load(args.warm), args.warm / "rates")
    built = {name: pools.build(name, rates) for name in args.pools}
    for seed in args.seeds:
        for name in args.pools:
            for cell in args.cells:
                if (name, cell, args.rate, args.objective, seed) in done:
                    continue
                args.pool = name
                row = train(cell, built[name], seed, args, args.objective)
                with args.results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(name, cell, seed, row["curve"][-1], row["updates"], row["cpu"], flush=True)


if __name__ == "__main__":
    main()
