"""report.png: the report's charts on one sheet, for a slide or a chat."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from viprl._files import replacing
from viprl.errors import MissingDependencyError
from viprl.replay.engine.trace import BINS
from viprl.replay.report.charts import highlighted
from viprl.replay.summary import Summary
from viprl.replay.wording import headline, label

COLOURS = ("#0b62d6", "#b35900", "#0f766e", "#7c3aed", "#b4276b")
MOST_RULES = 12


def draw_picture(summary: Summary, path: Path) -> Path:
    """Write the PNG; returns its path.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("report.png needs matplotlib: pip install 'viprl[report]'") from error
    figure = Figure(figsize=(12, 8.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2)
    figure.suptitle(textwrap.fill(headline(summary), 100), fontsize=13, x=0.01, ha="left")
    shown = highlighted(summary)
    _intervals(axes[0, 0], summary)
    _series(axes[0, 1], summary, shown)
    _spending(axes[1, 0], summary, shown)
    _cost(axes[1, 1], summary)
    with replacing(path) as file:
        figure.savefig(file, dpi=130, format="png")
    return path


def _intervals(ax: Any, summary: Summary) -> None:
    rows = summary.headline_rows[:MOST_RULES][::-1]
    for place, row in enumerate(rows):
        colour = {"better": "#116329", "worse": "#a40e26"}.get(row.verdict, "#57606a")
        if np.isfinite(row.ratio.high):
            ax.plot([row.ratio.low, row.ratio.high], [place, place], color=colour, lw=2.5)
        ax.plot(row.ratio.estimate, place, "o", color=colour)
    ax.axvline(1.0, color="#57606a", lw=1, ls="--")
    ax.set_xscale("log")
    ends = [v for r in rows for v in (r.ratio.low, r.ratio.estimate, r.ratio.high) if np.isfinite(v) and v > 0]
    lowest, highest = min(ends), max(ends)
    marks = [m for m in (0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2, 3, 5, 10) if lowest * 0.9 <= m <= highest * 1.1]
    ax.set_xticks(marks, [f"{m:g}" for m in marks])
    ax.set_xticks([], minor=True)
    ax.set_yticks(range(len(rows)), [label(row.rule) for row in rows])
    ax.set_title(f"Gradient variance, uniform = 1 ({summary.headline_phase}; 95% intervals)", fontsize=10)


def _series(ax: Any, summary: Summary, shown: list[str]) -> None:
    for colour, rule in zip(COLOURS, shown, strict=False):
        ax.plot(*summary.series[rule].T, color=colour, lw=1.8, label=label(rule))
    ax.axhline(1.0, color="#57606a", lw=1, ls="--")
    ax.set_xlabel("training step")
    ax.set_title("Gradient variance over the run, relative to uniform", fontsize=10)
    if shown:
        ax.legend(fontsize=8)


def _spending(ax: Any, summary: Summary, shown: list[str]) -> None:
    middles = 100 * (np.arange(BINS) + 0.5) / BINS
    for colour, rule in zip(COLOURS, shown, strict=False):
        table = summary.spending[rule]
        used = table[:, 0] > 0
        ax.plot(middles[used], table[used, 1] / table[used, 0], color=colour, lw=1.8, label=label(rule))
    table = summary.spending["uniform" if "uniform" in summary.spending else next(iter(summary.spending))]
    used = table[:, 0] > 0
    name = f"best allocation ({summary.best_name})"
    ax.plot(middles[used], table[used, 2] / table[used, 0], "k:", lw=2, label=name)
    ax.set_xlabel("success rate of the prompt, %")
    ax.set_title("Rollouts a prompt", fontsize=10)
    ax.legend(fontsize=8)


def _cost(ax: Any, summary: Summary) -> None:
    rows = sorted(summary.headline_rows, key=lambda row: row.milliseconds)
    ax.barh(range(len(rows)), [row.milliseconds for row in rows], color="#0b62d6")
    ax.set_yticks(range(len(rows)), [label(row.rule) for row in rows], fontsize=8)
    ax.set_title("Time a step for deciding, milliseconds", fontsize=10)
