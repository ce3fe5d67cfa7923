"""The arena's results as tables and a figure.

python report.py results/runs.jsonl                     # Markdown tables
python report.py results/runs.jsonl --figure arena.svg  # held-out success over generated rollouts, a panel a pool
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pools
from scipy import stats

BASE = "uniform"
RESAMPLES = 2_000
Row = dict[str, Any]
Curves = np.ndarray  # (seeds, points) held-out success


class Results:
    """Rows by pool and cell; a cell's name ends in its objective and learning rate where these are not the usual."""

    def __init__(self, paths: list[Path]) -> None:
        self.cells: dict[str, dict[str, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
        for path in paths:
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self.cells[row["pool"]][_name(row)][row["seed"]] = row

    def paired(self, pool: str, cell: str) -> tuple[list[int], list[Row], list[Row]]:
        """Seeds, rows of the cell and of uniform groups trained by the same objective and rate."""
        own = self.cells[pool][cell]
        base = self.cells[pool].get(BASE + cell[len(cell.split(" ")[0]) :], {})
        seeds = sorted(own.keys() & base.keys())
        return seeds, [own[s] for s in seeds], [base[s] for s in seeds]


def _name(row: Row) -> str:
    more = "" if row["objective"] == "success" else f" {row['objective']}"
    return row["cell"] + more + ("" if row["rate"] == 2e-4 else f" {row['rate']:g}")


def curves(rows: list[Row]) -> tuple[np.ndarray, Curves]:
    """Rollouts (points,), and held-out success at them, interpolated: rules pass the marks at different counts."""
    last = min(row["curve"][-1][0] for row in rows)
    grid = np.linspace(0, last, len(rows[0]["curve"]))
    return grid, np.array([np.interp(grid, *np.array(row["curve"], dtype=float).T[:2]) for row in rows])


def interval(differences: np.ndarray) -> tuple[float, float, float]:
    """Mean and 95 % t-interval."""
    mean = float(differences.mean())
    if len(differences) < 2:
        return mean, float("nan"), float("nan")
    half = float(stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences))
    return mean, mean - half, mean + half


def needed(own: list[Row], base: list[Row]) -> tuple[float, float, float]:
    """Share of uniform's rollouts after which the mean curve reaches uniform's last mean; 95 % bootstrap over seeds.

    Infinite where it never does.
    """
    grid, mine = curves(own)
    _, theirs = curves(base)

    def share(rows: np.ndarray) -> float:
        mean, goal = mine[rows].mean(0), theirs[rows, -1].mean()
        above = np.flatnonzero(mean >= goal)
        if not len(above):
            return float("inf")
        i = int(above[0])
        if i == 0:
            return 0.0
        return float(np.interp(goal, mean[i - 1 : i + 1], grid[i - 1 : i + 1]) / grid[-1])

    draws = np.random.default_rng(0).integers(len(own), size=(RESAMPLES, len(own)))
    low, high = np.quantile([share(rows) for rows in draws], [0.025, 0.975], method="nearest")
    return share(np.arange(len(own))), float(low), float(high)


def table(results: Results, pool: str, least: int) -> list[str]:
    """The pool's cells of ``least`` seeds or more, best first."""
    lines = [
        "| cell | seeds | held-out success | minus uniform [95 %] | rollouts to uniform's last [95 %] | live groups |",
        "|---|---|---|---|---|---|",
    ]
    found = []
    for cell in results.cells[pool]:
        seeds, own, base = results.paired(pool, cell)
        if len(seeds) < least:
            continue
        final = np.array([row["curve"][-1][1] for row in own])
        gap, low, high = interval(final - np.array([row["curve"][-1][1] for row in base]))
        live = np.mean([np.mean([c[3] for c in row["curve"] if c[3] is not None]) for row in own])
        same = cell.split(" ")[0] == BASE
        gained = "" if same else f"{gap:+.3f}" + ("" if np.isnan(low) else f" [{low:+.3f}, {high:+.3f}]")
        share = "" if same or len(seeds) < 3 else "{} [{}, {}]".format(*map(_percent, needed(own, base)))
        found.append(
            (final.mean(), f"| {cell} | {len(seeds)} | {final.mean():.3f} | {gained} | {share} | {live:.2f} |")
        )
    return lines + [line for _, line in sorted(found, reverse=True)]


def _percent(share: float) -> str:
    return f"{share:.0%}" if np.isfinite(share) else "never"


def figure(results: Results, cells: list[str], path: Path) -> None:
    """Mean curves with standard errors."""
    from matplotlib import pyplot

    shown = [pool for pool in pools.NAMES if pool in results.cells]
    _, axes = pyplot.subplots(1, len(shown), figsize=(3.2 * len(shown), 3.2), sharey=False, layout="constrained")
    for axis, pool in zip(np.atleast_1d(axes), shown, strict=True):
        for cell in cells:
            if not (own := list(results.cells[pool].get(cell, {}).values())):
                continue
            grid, success = curves(own)
            error = success.std(0, ddof=1) / len(own) ** 0.5 if len(own) > 1 else np.zeros(len(grid))
            (line,) = axis.plot(grid / 1000, success.mean(0), label=f"{cell} ({len(own)})")
            axis.fill_between(
                grid / 1000, success.mean(0) - error, success.mean(0) + error, color=line.get_color(), alpha=0.2
            )
        axis.set(title=pool, xlabel="generated rollouts (thousands)")
        axis.legend(fontsize=7)
    np.atleast_1d(axes)[0].set_ylabel("held-out success")
    pyplot.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--least", type=int, default=1, help="seeds that a cell must have to be in the tables")
    parser.add_argument("--cells", nargs="+", default=["uniform", "vip", "top4", "dapo", "mopps", "default4"])
    args = parser.parse_args()
    results = Results(args.results)
    for pool in pools.NAMES:
        if pool in results.cells:
            print(f"\n**{pool}**\n", *table(results, pool, args.least), sep="\n")
    if args.figure:
        figure(results, args.cells, args.figure)


if __name__ == "__main__":
    main()
