"""The ablation's table and figure from results/*.jsonl: ``python table.py``.

Differences are paired by seed: two cells of a seed start from the same model and see the same prompts in the same
order. Intervals are Student's t over seeds (95 %).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from scipy import stats

RESULTS = Path(__file__).parent / "results"
MEASURES = {"mean": "Mean@16", "pass@8": "Pass@8", "maj@8": "Maj@8"}
PAIRS = (  # what a difference isolates: a cell without its mean group size, and the one it is compared with
    ("allocation alone (equal weights)", "default-exact-paper-equal", "none-uniform-paper-equal"),
    ("allocation and rollout weights", "default-exact-paper-rollout", "none-uniform-paper-equal"),
    ("rollout weights alone", "default-exact-paper-rollout", "default-exact-paper-equal"),
    ("learned variance instead of the formula", "default-exact-learned-equal", "default-exact-paper-equal"),
    ("the same, GP as printed: equal weights", "gp-exact-paper-equal", "none-uniform-paper-equal"),
    ("GP as printed, rollout weights (the paper's code)", "gp-exact-paper-rollout", "none-uniform-paper-equal"),
    ("default predictor instead of the GP, rollout weights", "default-exact-paper-rollout", "gp-exact-paper-rollout"),
)

Runs = dict[str, dict[int, dict]]


def load(folder: Path = RESULTS) -> Runs:
    """cell -> seed -> run."""
    found: Runs = {}
    for path in sorted(folder.glob("*.jsonl")):
        for run in map(json.loads, path.read_text().splitlines()):
            found.setdefault(run["cell"], {})[run["seed"]] = run
    return found


def end(run: dict, measure: str) -> float:
    return float(run["curve"][-1][measure])


def average(run: dict, measure: str) -> float:
    """Over all evaluations: who learns faster."""
    return float(np.mean([point[measure] for point in run["curve"]]))


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half width; the width of one value is unknown."""
    array = np.asarray(values, dtype=float)
    if len(array) < 2:
        return float(array.mean()), float("nan")
    return float(array.mean()), float(stats.t.ppf(0.975, len(array) - 1) * array.std(ddof=1) / np.sqrt(len(array)))


def written(values: list[float], form: str = "%.3f") -> str:
    mean, half = interval(values)
    return form % mean + ("" if np.isnan(half) else f" ± {half:.3f}")


def difference(runs: Runs, first: str, second: str, statistic, measure: str) -> list[float]:
    """Paired by seed."""
    a, b = runs.get(first, {}), runs.get(second, {})
    return [statistic(a[s], measure) - statistic(b[s], measure) for s in sorted(set(a) & set(b))]


def cell_table(runs: Runs, mean: int) -> list[str]:
    lines = [
        f"### {mean} rollouts a prompt",
        "",
        "| predictor | allocation | variance | weights | seeds | Mean@16 | Pass@8 | Maj@8 | Mean@16 - uniform, end | "
        "the same, mean of all evaluations | realised p(1-p) ratio |",
        "|" + "---|" * 11,
    ]
    uniform = f"none-uniform-paper-equal-{mean}"
    order = [c for c in runs if c.endswith(f"-{mean}")]
    order.sort(key=lambda c: (c != uniform, -len(runs[c]), c))
    for cell in order:
        predictor, allocation, variance, weighting, _ = cell.split("-")
        own = list(runs[cell].values())
        scores = [written([end(run, m) for run in own]) for m in MEASURES]
        gaps = ["", ""]
        if cell != uniform:
            gaps = [written(difference(runs, cell, uniform, f, "mean"), "%+.3f") for f in (end, average)]
        ratio = np.mean([np.mean(run["ratio"]) for run in own])
        lines.append(
            f"| {predictor} | {allocation} | {variance} | {weighting} | {len(own)} | "
            + " | ".join(scores + gaps)
            + f" | {ratio:.2f} |"
        )
    return lines


def pair_table(runs: Runs) -> list[str]:
    lines = [
        "### What each part is worth: paired differences",
        "",
        "| difference | rollouts a prompt | seeds | Mean@16, end | Mean@16, mean of all evaluations | Pass@8, end | "
        "Maj@8, end |",
        "|---|---|---|---|---|---|---|",
    ]
    for label, first, second in PAIRS:
        for mean in (8, 16):
            names = f"{first}-{mean}", f"{second}-{mean}"
            gaps = [
                difference(runs, *names, f, m)
                for f, m in ((end, "mean"), (average, "mean"), (end, "pass@8"), (end, "maj@8"))
            ]
            if len(gaps[0]) > 1:
                lines.append(
                    f"| {label} | {mean} | {len(gaps[0])} | " + " | ".join(written(g, "%+.3f") for g in gaps) + " |"
                )
    return lines


def draw(runs: Runs, path: Path) -> None:
    """Paired differences with uniform groups, of all cells with at least three seeds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    for axis, mean in zip(figure.subplots(1, 2, sharex=True), (8, 16), strict=True):
        uniform = f"none-uniform-paper-equal-{mean}"
        cells = [c for c in runs if c.endswith(f"-{mean}") and c != uniform and len(runs[c]) > 2]
        cells.sort(key=lambda c: np.mean(difference(runs, c, uniform, average, "mean")))
        for row, cell in enumerate(cells):
            centre, half = interval(difference(runs, cell, uniform, average, "mean"))
            axis.errorbar(centre, row, xerr=half, fmt="o", color="#1f63c4", ecolor="#5b6675", capsize=3)
        labels = [f"{c.rsplit('-', 1)[0].replace('-', ', ')} ({len(runs[c])})" for c in cells]
        axis.set_yticks(range(len(cells)), labels, fontsize=8)
        axis.axvline(0, color="#1d2430", linewidth=1)
        axis.set(title=f"{mean} rollouts a prompt", xlabel="mean of all evaluations - uniform")
        axis.grid(axis="x", color="#dfe4ea")
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    runs = load()
    if not runs:
        raise SystemExit(f"no runs in {RESULTS}")
    lines = [*pair_table(runs), "", *cell_table(runs, 8), "", *cell_table(runs, 16), ""]
    text = "\n".join(lines)
    (Path(__file__).parent / "table.md").write_text(text, encoding="utf-8")
    draw(runs, Path(__file__).parent / "ablation.png")
    print(text)


if __name__ == "__main__":
    main()
