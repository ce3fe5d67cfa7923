"""Charts on one sheet as a PNG, for a slide or a chat; drawn by matplotlib in the light colours."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from viprl._files import replacing
from viprl.reports.charts import Bars, Cells, Chart, Dots, Line, Spans
from viprl.reports.style import DASHES, HEAT, LIGHT

logger = logging.getLogger("viprl")


def write_png(path: Path, charts: Sequence[Chart], *, title: str = "", columns: int = 2) -> list[Path]:
    """Draw the charts, ``columns`` in a row.

    Returns:
        [path]; empty where matplotlib is not installed, with a warning: the picture is an extra of the page.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        logger.warning("%s is left out: it needs matplotlib, which is not installed", path)
        return []
    columns = min(columns, len(charts))
    rows = -(-len(charts) // columns)
    figure = Figure(figsize=(6 * columns, 4.2 * rows), layout="constrained", facecolor=LIGHT["page"])
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(textwrap.fill(title, 50 * columns), fontsize=13, x=0.01, ha="left")
    for place, chart in enumerate(charts):
        _draw(figure, figure.add_subplot(rows, columns, place + 1), chart)
    with replacing(path) as file:
        figure.savefig(file, dpi=130, format="png")
    return [path]


def _draw(figure: Any, ax: Any, chart: Chart) -> None:
    ax.set(xlim=(chart.x.low, chart.x.high), ylim=(chart.y.low, chart.y.high), xlabel=chart.x.title)
    for set_ticks, axis in ((ax.set_xticks, chart.x), (ax.set_yticks, chart.y)):
        marks = axis.marks(6)
        set_ticks([value for value, _ in marks], [words for _, words in marks], fontsize=8)
    ax.set_title(textwrap.fill(chart.label, 70), fontsize=10, loc="left")
    ax.spines[["top", "right"]].set_visible(False)
    for mark in chart.marks:
        if isinstance(mark, Line):
            ax.plot(mark.x, mark.y, **_look(mark.css))
        elif isinstance(mark, Bars):
            ax.bar(mark.edges[:-1], mark.heights, np.diff(mark.edges) * 0.94, align="edge", color=_colour(mark.css))
        elif isinstance(mark, Dots):
            ax.scatter(mark.x, mark.y, s=(1.4 * mark.radius) ** 2, color=_colour(mark.css), zorder=3)
        elif isinstance(mark, Spans):
            ax.vlines(mark.x, mark.low, mark.high, color=_colour(mark.css), lw=1.2)
        else:
            _heat(figure, ax, mark)
    named = [ax.plot([], [], **_look(css), label=name)[0] for css, name in chart.legend()]
    if named:
        ax.legend(handles=named, fontsize=8, frameon=False)


def _heat(figure: Any, ax: Any, cells: Cells) -> None:
    from matplotlib.colors import ListedColormap

    low, high = cells.range
    colours = ListedColormap([LIGHT[f"h{i}"] for i in range(HEAT)])
    image = ax.pcolormesh(
        cells.x_edges, cells.y_edges, np.ma.masked_invalid(cells.values), cmap=colours, vmin=low, vmax=high
    )
    figure.colorbar(image, ax=ax, label=cells.name)


def _colour(css: str) -> str:
    names = {"uniform": "soft", "best": "ink"}
    return next((LIGHT[names.get(word, word)] for word in css.split() if names.get(word, word) in LIGHT), LIGHT["c0"])


def _look(css: str) -> dict[str, Any]:
    words = css.split()
    wide = {"thin": 1.0, "seed": 0.6, "other": 0.8, "uniform": 1.2, "thick": 7.0, "share": 7.0}
    dash: tuple[float, ...] = next(
        (DASHES[int(word[1:])] for word in words if word[0] == "c" and word[1:].isdigit()), ()
    )
    dash = (5, 4) if "uniform" in words else (1.5, 3) if "best" in words else dash
    return {
        "color": _colour(css),
        "linewidth": next((wide[word] for word in words if word in wide), 2.0),
        "linestyle": (0, tuple(part / 2 for part in dash)) if dash and "thick" not in words else "-",
        "alpha": 0.35 if "seed" in words else 1.0,
        "solid_capstyle": "butt",
    }
