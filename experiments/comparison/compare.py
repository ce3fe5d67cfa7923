"""Equal rollouts, equal steps, equal time: uniform groups, VIP and learned variances at 8 and 16 rollouts a prompt.

Reads the runs of ``experiments/ablation`` (learning curves) and, with ``--work``, those of ``experiments/learning``
(seconds of a step of the TRL job), and writes table.md and comparison.png.

    python experiments/comparison/compare.py --work runs/learning
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "ablation"))
from table import Runs, load, written  # noqa: E402

CELLS = {
    "uniform": "none-uniform-paper-equal",
    "VIP": "default-exact-paper-equal",
    "learned": "default-exact-learned-equal",
}
BATCH = 32
PARTS = ("allocate", "rollouts", "update", "observe")


def seconds(run: dict, step: int, *, overhead: bool = True) -> float:
    """Seconds of training up to a step; without overhead, allocating and observing cost nothing."""
    spent = sum(v for k, v in run["seconds"].items() if overhead or k in ("rollouts", "update"))
    return spent * step / run["steps"]


def at(run: dict, step: int) -> float:
    return next(float(point["mean"]) for point in run["curve"] if point["step"] == step)


def at_seconds(run: dict, limit: float, *, overhead: bool) -> float:
    """Mean@16 after so many seconds, linear between evaluations."""
    times = [seconds(run, point["step"], overhead=overhead) for point in run["curve"]]
    return float(np.interp(limit, times, [point["mean"] for point in run["curve"]]))


def rows(runs: Runs) -> list[str]:
    """Mean@16 of every method at equal steps, equal rollouts and equal time, and differences with uniform at 8."""
    reference = runs[f"{CELLS['uniform']}-8"]
    limits = {seed: seconds(run, run["steps"]) for seed, run in reference.items()}
    columns = {
        "equal steps (100)": lambda run, seed, mean: at(run, 100),
        "equal rollouts (25,600)": lambda run, seed, mean: at(run, 100 * 8 // mean),
        "equal time": lambda run, seed, mean: at_seconds(run, limits[seed], overhead=True),
        "equal time, overhead not counted": lambda run, seed, mean: at_seconds(run, limits[seed], overhead=False),
    }
    lines = ["| method | rollouts a prompt | seeds | " + " | ".join(columns) + " |", "|" + "---|" * (3 + len(columns))]
    for mean in (8, 16):
        for label, cell in CELLS.items():
            own = runs.get(f"{cell}-{mean}", {})
            seeds = sorted(set(own) & set(reference))
            if not seeds:
                continue
            texts = []
            for measure in columns.values():
                values = [measure(own[s], s, mean) for s in seeds]
                base = [measure(reference[s], s, 8) for s in seeds]
                gap = (
                    "" if (label, mean) == ("uniform", 8) else f" ({written(list(np.subtract(values, base)), '%+.3f')})"
                )
                texts.append(f"{np.mean(values):.3f}{gap}")
            lines.append(f"| {label} | {mean} | {len(seeds)} | " + " | ".join(texts) + " |")
    return lines


def cost(runs: Runs) -> list[str]:
    """Milliseconds of a step by part, in the plain loop."""
    lines = [
        "| method | rollouts a prompt | " + " | ".join(f"{p}, ms" for p in PARTS) + " | overhead |",
        "|" + "---|" * (3 + len(PARTS)),
    ]
    for mean in (8, 16):
        for label, cell in CELLS.items():
            own = list(runs.get(f"{cell}-{mean}", {}).values())
            if own:
                spent = {p: 1000 * np.mean([run["seconds"][p] / run["steps"] for run in own]) for p in PARTS}
                share = (spent["allocate"] + spent["observe"]) / (spent["rollouts"] + spent["update"])
                lines.append(
                    f"| {label} | {mean} | " + " | ".join(f"{spent[p]:.1f}" for p in PARTS) + f" | {share:.1%} |"
                )
    return lines


def trl_cost(work: Path) -> list[str]:
    """Seconds of a step of ``viprl train``."""
    lines = ["| estimator | policy | runs | a step, s | predict, allocate, observe, s | share |", "|" + "---|" * 6]
    for estimator in ("rloo", "dr_grpo"):
        for policy in ("uniform", "vip"):
            steps, overhead = [], []
            for path in sorted(work.glob(f"{estimator}-{policy}-*/report/metrics.jsonl")):
                found = [json.loads(line) for line in path.read_text().splitlines()]
                found = [row for row in found if "viprl/overhead_seconds" in row]
                steps.append(np.mean([row["step_seconds"] for row in found]))
                overhead.append(np.mean([row["viprl/overhead_seconds"] for row in found]))
            if steps:
                share = np.sum(overhead) / np.sum(steps)
                lines.append(
                    f"| {estimator} | {policy} | {len(steps)} | {np.mean(steps):.2f} | {np.mean(overhead):.4f} | "
                    f"{share:.2%} |"
                )
    return lines


def draw(runs: Runs, path: Path) -> None:
    """Mean@16 by steps, by rollouts and by seconds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 3, sharey=True)
    colours = {"uniform": "#c2570c", "VIP": "#1f63c4", "learned": "#2f7d4f"}
    for mean in (8, 16):
        for label, cell in CELLS.items():
            own = list(runs.get(f"{cell}-{mean}", {}).values())
            if not own:
                continue
            steps = np.array([point["step"] for point in own[0]["curve"]])
            curve = np.mean([[point["mean"] for point in run["curve"]] for run in own], axis=0)
            clock = np.mean([[seconds(run, s) for s in steps] for run in own], axis=0)
            for axis, x in zip(axes, (steps, steps * BATCH * mean / 1000, clock), strict=True):
                axis.plot(
                    x, curve, color=colours[label], linestyle="-" if mean == 8 else "--", marker="o", markersize=3,
                    label=f"{label}, {mean} a prompt ({len(own)} seeds)",
                )  # fmt: skip
    for axis, label in zip(axes, ("steps", "thousand rollouts", "seconds of one core"), strict=True):
        axis.set(xlabel=label)
        axis.grid(color="#dfe4ea")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set(ylabel="held-out Mean@16")
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=None, help="the runs of experiments/learning")
    args = parser.parse_args()
    runs = load()
    if f"{CELLS['uniform']}-8" not in runs:
        raise SystemExit("run experiments/ablation/run.py first")
    parts = ["## Mean@16, differences with uniform groups of 8 in brackets", "", *rows(runs), ""]
    parts += ["## Cost of a step, plain loop", "", *cost(runs), ""]
    if args.work is not None:
        parts += ["## Cost of a step, `viprl train`", "", *trl_cost(args.work), ""]
    text = "\n".join(parts)
    (HERE / "table.md").write_text(text, encoding="utf-8")
    draw(runs, HERE / "comparison.png")
    print(text)


if __name__ == "__main__":
    main()
