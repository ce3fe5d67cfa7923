"""Two looks, light and dark, for the same picture; colours that stay apart without colour vision."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Theme:
    """Colours of one look. ``series`` are for policies, in order; ``heat`` is a matplotlib colour map."""

    name: str
    paper: str
    ink: str
    quiet: str
    grid: str
    series: tuple[str, ...]
    heat: str
    blank: str


LIGHT = Theme(
    "light",
    "#ffffff",
    "#1d2430",
    "#5b6675",
    "#dfe4ea",
    ("#1f63c4", "#c2570c", "#13795b", "#8a3ab9", "#7a6a00", "#b3245f"),
    "YlGnBu",
    "#eef1f4",
)
DARK = Theme(
    "dark",
    "#161b22",
    "#e6eaf0",
    "#9aa6b5",
    "#303843",
    ("#6ea8ff", "#f0a35e", "#5ccba4", "#c792ea", "#d9c74f", "#f07aa6"),
    "viridis",
    "#232a34",
)
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (6, 2, 1, 2)), (0, (3, 1)), "-.")

Draw = Callable[[Any, Theme], None]  # (figure, theme)


@dataclass(frozen=True)
class Picture:
    """A drawn picture.

    Attributes:
        name: of its file.
        title, caption: what the page says about it; the caption says how to read it.
        light, dark: SVG as data URIs.
    """

    name: str
    title: str
    caption: str
    light: str
    dark: str


def draw(name: str, title: str, caption: str, size: tuple[float, float], paint: Draw, folder: Path) -> Picture:
    """Paint a figure in both looks; ``<folder>/<name>.png`` keeps the light one.

    Args:
        size: width and height in inches.
        paint: called once for each look with an empty figure.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    uris = {}
    for theme in (LIGHT, DARK):
        with rc_context(_settings(theme)):
            figure = Figure(figsize=size, layout="constrained")
            FigureCanvasAgg(figure)
            paint(figure, theme)
            buffer = io.BytesIO()
            figure.savefig(buffer, format="svg", metadata={"Date": None})
            uris[theme.name] = "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()
            if theme is LIGHT:
                folder.mkdir(parents=True, exist_ok=True)
                figure.savefig(folder / f"{name}.png", dpi=150)
    return Picture(name, title, caption, uris["light"], uris["dark"])


def _settings(theme: Theme) -> dict[str, Any]:
    return {
        "figure.facecolor": theme.paper,
        "savefig.facecolor": theme.paper,
        "axes.facecolor": theme.paper,
        "axes.edgecolor": theme.quiet,
        "axes.labelcolor": theme.ink,
        "axes.titlecolor": theme.ink,
        "axes.titlesize": 11,
        "axes.titlelocation": "left",
        "axes.labelsize": 10,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": theme.grid,
        "grid.linewidth": 0.8,
        "text.color": theme.ink,
        "xtick.color": theme.quiet,
        "ytick.color": theme.quiet,
        "xtick.labelcolor": theme.ink,
        "ytick.labelcolor": theme.ink,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "legend.labelcolor": theme.ink,
        "font.family": "DejaVu Sans",
        "lines.linewidth": 1.9,
        "svg.fonttype": "path",
        "svg.hashsalt": "viprl",
    }
