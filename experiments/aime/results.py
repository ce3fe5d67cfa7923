"""Pass@k, Mean@k and Maj@k from verl's validation dumps, beside the published figures.

    python results.py runs/qwen2.5-math-1.5b_rloo_vip_8q_seed1 [more runs] --k 32

Reads the last ``validation/<step>.jsonl`` of every run (or ``--step``). Intervals are bootstrap intervals over the
problems.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from viprl.errors import ConfigurationError
from viprl.evaluation import bootstrap_interval, maj_at_k, mean_at_k, pass_at_k

MEASURES = ("pass", "mean", "maj")
PUBLISHED = Path(__file__).with_name("published.csv")
RUN_NAME = re.compile(r"^(?P<model>.+)_(?P<estimator>dr_grpo|rloo)_(?P<policy>vip|uniform)_(?P<budget>\d+q)_seed\d+$")


def last_dump(run: Path, step: int | None = None) -> Path:
    """The validation file of a step, the last one where no step is given.

    Raises:
        ConfigurationError: there is none.
    """
    files = sorted((run / "validation").glob("*.jsonl"), key=lambda path: int(path.stem))
    chosen = [path for path in files if step is None or int(path.stem) == step]
    if not chosen:
        raise ConfigurationError(
            f"{run}/validation must hold a dump of step {step or 'any'}, but has {len(files)} files"
        )
    return chosen[-1]


def measures_of(dump: Path, k: int) -> dict[str, dict[str, np.ndarray]]:
    """task -> measure -> (P,) values, one per problem.

    A problem's answers are its rows with the same uid. Votes are over the extracted answers as they were written; the
    majority is right where the answer with most votes was graded right.
    """
    problems: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in dump.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        problems[row["task"], row["uid"].rsplit("_", 2)[0]].append(row)
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: {name: [] for name in MEASURES})
    for (task, _), rows in problems.items():
        if len(rows) < k:
            raise ConfigurationError(f"k answers per problem must be there, but {dump} has {len(rows)} < {k}")
        correct = [float(row["acc"]) for row in rows]
        right = {row["pred"] for row in rows if row["acc"]}
        values[task]["pass"].append(float(pass_at_k(len(rows), int(sum(correct)), k)))
        values[task]["mean"].append(mean_at_k(correct, k))
        values[task]["maj"].append(maj_at_k([row["pred"] for row in rows], sorted(right), k))
    return {task: {name: np.array(v) for name, v in found.items()} for task, found in values.items()}


def published(run: str, task: str) -> dict[str, str]:
    """The published Pass@32 / Mean@32 / Maj@32 of a run's name and task; empty where there are none."""
    match = RUN_NAME.match(run)
    if match is None:
        return {}
    with open(PUBLISHED, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if all(row[name] == match[name] for name in match.groupdict()) and row["task"] == task:
                return row
    return {}


def table(runs: list[Path], k: int, step: int | None = None) -> str:
    """A Markdown table, percent with 95 % intervals over the problems."""
    lines = [
        f"| run | step | task | problems | Pass@{k} | Mean@{k} | Maj@{k} | published Pass/Mean/Maj@32 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        dump = last_dump(run, step)
        for task, found in sorted(measures_of(dump, k).items()):
            cells = []
            for name in MEASURES:
                interval = bootstrap_interval(100 * found[name])
                cells.append(f"{100 * found[name].mean():.2f} [{interval.low:.1f}, {interval.high:.1f}]")
            paper = published(run.name, task)
            known = " / ".join(paper[name] for name in MEASURES) if paper else "-"
            lines.append(
                f"| {run.name} | {dump.stem} | {task} | {len(found['pass'])} | {' | '.join(cells)} | {known} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--k", type=int, default=32)
    parser.add_argument("--step", type=int)
    args = parser.parse_args()
    print(table(args.runs, args.k, args.step))


if __name__ == "__main__":
    main()
