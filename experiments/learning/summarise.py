"""Table and curves of the learning comparison, from the results that are there.

Differences are paired by seed: all policies start from the same model and see the same prompts in the same order.
Intervals are Student's t over seeds (95 %).

    python experiments/learning/summarise.py
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "ablation"))
from table import interval  # noqa: E402

LABELS = {"rloo": "RLOO", "dr_grpo": "Dr. GRPO"}
ADAPTIVE = {"vip": "VIP", "learned": "learned"}
MEASURES = {
    "held-out success at the end, sampled": lambda cell: cell["sampled"][-1],
    "held-out success at the end, greedy": lambda cell: cell["greedy"][-1],
    "held-out success, mean over the evaluations after the start": lambda cell: float(np.mean(cell["sampled"][1:])),
}


def load(folder: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    """(estimator, policy, seed) -> cell."""
    cells = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*-seed*.json"))]
    return {(cell["estimator"], cell["policy"], cell["seed"]): cell for cell in cells}


def seeds_of(cells: dict[tuple[str, str, int], dict[str, Any]], estimator: str, policy: str = "vip") -> list[int]:
    """Seeds for which a policy and uniform groups have finished."""
    return sorted(s for e, p, s in cells if e == estimator and p == policy and (e, "uniform", s) in cells)


def table(cells: dict[tuple[str, str, int], dict[str, Any]]) -> str:
    """The result as Markdown."""
    lines = [
        "| estimator | policy | measure | seeds | its value | uniform | difference | 95 % interval |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for estimator, policy in ((e, p) for e in LABELS for p in ADAPTIVE):
        seeds = seeds_of(cells, estimator, policy)
        for name, measure in MEASURES.items() if seeds else ():
            own, uniform = ([measure(cells[estimator, p, s]) for s in seeds] for p in (policy, "uniform"))
            mean, half = interval(np.subtract(own, uniform).tolist())
            lines.append(
                f"| {LABELS[estimator]} | {ADAPTIVE[policy]} | {name} | {len(seeds)} | {np.mean(own):.3f} | "
                f"{np.mean(uniform):.3f} | {mean:+.4f} | {mean - half:+.4f} to {mean + half:+.4f} |"
            )
    lines += [
        "",
        "| estimator | policy | predicted ratio | realised p(1-p) ratio | guard held | log loss (constant) | "
        "overhead | CPU s a run |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for estimator, policy in ((e, p) for e in LABELS for p in ADAPTIVE):
        chosen = [cells[estimator, policy, s] for s in seeds_of(cells, estimator, policy)]
        if chosen:
            mean = {
                key: np.mean([cell[key] for cell in chosen])
                for key in (
                    "predicted_ratio",
                    "realised_ratio",
                    "guard_share",
                    "log_loss",
                    "log_loss_constant",
                    "overhead_share",
                    "cpu_seconds",
                )
            }
            lines.append(
                f"| {LABELS[estimator]} | {ADAPTIVE[policy]} | {mean['predicted_ratio']:.3f} | "
                f"{mean['realised_ratio']:.3f} | "
                f"{100 * mean['guard_share']:.0f} % of steps | "
                f"{mean['log_loss']:.3f} ({mean['log_loss_constant']:.3f}) | "
                f"{100 * mean['overhead_share']:.2f} % | {mean['cpu_seconds']:.0f} |"
            )
    return "\n".join(lines) + "\n"


def draw(cells: dict[tuple[str, str, int], dict[str, Any]], path: Path) -> None:
    """Held-out curves of all policies, and their paired differences with uniform groups, for each estimator."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2, sharex=True, height_ratios=(2, 1), squeeze=False)
    colours = {"vip": "#1f63c4", "uniform": "#c2570c", "learned": "#2f7d4f"}
    dashes = {"vip": "-", "uniform": (0, (5, 2)), "learned": (0, (1, 1))}
    for column, (estimator, label) in enumerate(LABELS.items()):
        top, bottom = axes[0, column], axes[1, column]
        bottom.axhline(0, color=colours["uniform"], linewidth=1)
        seeds = {policy: seeds_of(cells, estimator, policy) for policy in ADAPTIVE}
        if not seeds["vip"]:
            top.set_title(f"{label}: no finished pair")
            continue
        seeds["uniform"] = seeds["vip"]
        steps = cells[estimator, "uniform", seeds["uniform"][0]]["eval_steps"]
        for policy, own in seeds.items():
            if not own:
                continue
            values = np.array([cells[estimator, policy, s]["sampled"] for s in own])
            top.plot(steps, values.T, color=colours[policy], alpha=0.25, linewidth=0.7)
            top.plot(
                steps, values.mean(axis=0), color=colours[policy], linewidth=2, linestyle=dashes[policy], label=policy
            )
            if policy != "uniform":
                gaps = values - np.array([cells[estimator, "uniform", s]["sampled"] for s in own])
                mean, half = np.array([interval(d) for d in gaps.T.tolist()]).T
                bottom.plot(steps, mean, color=colours[policy], linestyle=dashes[policy])
                bottom.fill_between(steps, mean - half, mean + half, color=colours[policy], alpha=0.15, linewidth=0)
        top.set(title=f"{label}, {len(seeds['uniform'])} seeds", ylabel="held-out success (sampled)")
        bottom.set(xlabel="step", ylabel="policy - uniform")
        top.legend(frameon=False, loc="lower right")
        for axis in (top, bottom):
            axis.grid(color="#dfe4ea")
            axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args()
    cells = load(args.results)
    if not any(seeds_of(cells, estimator) for estimator in LABELS):
        raise SystemExit(f"no finished pair of runs in {args.results}")
    text = table(cells)
    (args.out / "table.md").write_text(text, encoding="utf-8")
    draw(cells, args.out / "learning.png")
    print(text)


if __name__ == "__main__":
    main()
