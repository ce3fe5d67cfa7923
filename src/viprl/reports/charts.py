"""Charts as data: what is drawn, where, and under which name. ``svg`` draws them for a page, ``png`` for a slide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from viprl._arrays import FloatArray
from viprl.reports.style import HEAT


def number(value: float) -> str:
    """A tick's words without trailing zeros."""
    return f"{value:.10g}"


def percent(value: float) -> str:
    """A share as a tick's words."""
    return f"{100 * value:.0f}%"


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers within [low, high], at most ``most`` of them and at least two where possible."""
    span = high - low
    if not np.isfinite(span) or span <= 0:
        return [low]
    step = 10.0 ** np.floor(np.log10(span / most))
    for factor in (1, 2, 2.5, 5, 10, 20):
        if span / (step * factor) <= most:
            step *= factor
            break
    first = np.ceil(low / step - 1e-9) * step
    return [float(round(first + i * step, 10)) for i in range(int((high - first) / step + 1e-9) + 1)]


@dataclass(frozen=True)
class Axis:
    """A linear axis from ``low`` to ``high``.

    Attributes:
        title: under the x axis, or over the chart for the y axis of a picture.
        words: a tick's words.
        places: (value, words) of the ticks where round numbers would not do, as for names or logarithms.
    """

    low: float
    high: float
    title: str = ""
    words: Callable[[float], str] = number
    places: Sequence[tuple[float, str]] | None = None

    def marks(self, most: int) -> list[tuple[float, str]]:
        """The ticks, at most ``most`` where they are round numbers."""
        if self.places is not None:
            return list(self.places)
        return [(value, self.words(value)) for value in ticks(self.low, self.high, most)]


@dataclass(frozen=True)
class Line:
    """A line through (x, y), broken where y is not finite. ``css`` says how it looks, ``name`` is for the legend."""

    x: FloatArray
    y: FloatArray
    css: str
    name: str = ""


@dataclass(frozen=True)
class Bars:
    """Bars from the bottom of the chart: K + 1 edges, K heights."""

    edges: FloatArray
    heights: FloatArray
    css: str
    name: str = ""


@dataclass(frozen=True)
class Dots:
    """Filled circles; ``radius`` in pixels."""

    x: FloatArray
    y: FloatArray
    radius: FloatArray
    css: str
    name: str = ""


@dataclass(frozen=True)
class Spans:
    """Vertical intervals from ``low`` to ``high`` at ``x``."""

    x: FloatArray
    low: FloatArray
    high: FloatArray
    css: str
    name: str = ""


@dataclass(frozen=True)
class Cells:
    """A heat map: ``values`` (R, K) between R + 1 y edges and K + 1 x edges; NaN stays blank. ``name``: unit."""

    x_edges: FloatArray
    y_edges: FloatArray
    values: FloatArray
    name: str

    @property
    def range(self) -> tuple[float, float]:
        """Values of the faintest and of the strongest colour: whole numbers, at least 1 apart."""
        low = float(np.floor(np.nanmin(self.values)))
        return low, max(float(np.ceil(np.nanmax(self.values))), low + 1)

    def levels(self) -> FloatArray:
        """Index of each cell's colour, NaN where it is blank."""
        low, high = self.range
        return np.minimum(np.floor((self.values - low) / (high - low) * HEAT), HEAT - 1)


Mark = Line | Bars | Dots | Spans | Cells


@dataclass(frozen=True)
class Chart:
    """One plot.

    Attributes:
        label: what it shows, for screen readers; its title in a picture.
        marks: drawn in this order, the later over the earlier.
        names: legend entries (css, text) in order; by default the marks' own.
    """

    label: str
    x: Axis
    y: Axis
    marks: Sequence[Mark]
    names: Sequence[tuple[str, str]] | None = None

    def legend(self) -> list[tuple[str, str]]:
        """(css, text) of every name, once."""
        if self.names is not None:
            return list(self.names)
        named = [(mark.css, mark.name) for mark in self.marks if not isinstance(mark, Cells) and mark.name]
        return list(dict.fromkeys(named))
