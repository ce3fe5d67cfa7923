"""Charts as SVG by hand: crisp at every size, coloured by the page's style sheet (light, dark, print)."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from zlib import crc32

import numpy as np

from viprl._arrays import FloatArray
from viprl.reports.charts import Bars, Cells, Chart, Dots, Line, Spans
from viprl.reports.style import HEAT

WIDE, NARROW, PANEL = 880, 344, 400
LEFT, RIGHT, TOP, BOTTOM = 46, 26, 10, 46


def figure(chart: Chart) -> str:
    """Legend and chart, drawn wide and narrow; the style sheet shows the one that fits."""
    wide, narrow = _Drawing(chart, WIDE, 320).render(8), _Drawing(chart, NARROW, 280).render(4)
    return f'<figure>{legend(chart)}<div class="wide">{wide}</div><div class="narrow">{narrow}</div></figure>'


def panels(charts: Sequence[tuple[str, Chart]], *, legends: bool = True) -> str:
    """Charts with their titles side by side, below one another where the page is narrow."""
    inner = "".join(
        f"<figure><figcaption>{escape(title)}</figcaption>{legend(chart) if legends else ''}"
        f"{_Drawing(chart, PANEL, 320).render(5)}</figure>"
        for title, chart in charts
    )
    return f'<div class="pair">{inner}</div>'


def legend(chart: Chart) -> str:
    """What the chart's colours stand for; empty where nothing has a name."""
    items = [f'<li><span class="swatch {css}"></span>{escape(name)}</li>' for css, name in chart.legend()]
    for mark in chart.marks:
        if isinstance(mark, Cells):
            low, high = mark.range
            scale = "".join(f'<span class="h{i}"></span>' for i in range(HEAT))
            items.append(f'<li>{low:.3g}<span class="scale">{scale}</span>{high:.3g} {escape(mark.name)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>' if items else ""


class _Drawing:
    """One chart in ``width`` x ``height`` user units, which are pixels where the page shows it at its natural size."""

    def __init__(self, chart: Chart, width: int, height: int) -> None:
        self.chart, self.width, self.height = chart, width, height
        self.parts: list[str] = []
        self.clip = f"clip-{crc32(repr((width, chart.label)).encode())}"

    def render(self, most: int) -> str:
        """The ``<svg>``, with at most ``most`` round ticks on the x axis."""
        chart = self.chart
        self._grid(chart.x.marks(most), chart.y.marks(6))
        for mark in chart.marks:
            if isinstance(mark, Line):
                self._line(mark.x, mark.y, f"line {mark.css}")
            elif isinstance(mark, Bars):
                self._bars(mark)
            elif isinstance(mark, Dots):
                self._dots(mark)
            elif isinstance(mark, Spans):
                for x, low, high in zip(mark.x, mark.low, mark.high, strict=True):
                    self._line(np.array([x, x]), np.array([low, high]), f"span {mark.css}")
            else:
                self._cells(mark)
        middle = (LEFT + self.width - RIGHT) / 2
        title = escape(chart.x.title)
        self.parts.append(f'<text class="title" x="{middle}" y="{self.height - 6}" text-anchor="middle">{title}</text>')
        (x0, y1), (x1, y0) = self.at(chart.x.low, chart.y.high), self.at(chart.x.high, chart.y.low)
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}" role="img" '
            f'aria-label="{escape(chart.label)}"><defs><clipPath id="{self.clip}"><rect x="{x0}" y="{y1}" '
            f'width="{x1 - x0:.2f}" height="{y0 - y1:.2f}"/></clipPath></defs>{"".join(self.parts)}</svg>'
        )

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Data to user units."""
        u = (x - self.chart.x.low) / (self.chart.x.high - self.chart.x.low)
        v = (y - self.chart.y.low) / (self.chart.y.high - self.chart.y.low)
        inner_width, inner_height = self.width - LEFT - RIGHT, self.height - TOP - BOTTOM
        return round(float(LEFT + u * inner_width), 2), round(float(TOP + (1 - v) * inner_height), 2)

    def _grid(self, x_ticks: Sequence[tuple[float, str]], y_ticks: Sequence[tuple[float, str]]) -> None:
        left, right, bottom = self.chart.x.low, self.chart.x.high, self.chart.y.low
        for value, text in y_ticks:
            x0, y0 = self.at(left, value)
            self._segment("grid", (x0, y0), self.at(right, value))
            self.parts.append(f'<text class="tick" x="{x0 - 6}" y="{y0 + 4}" text-anchor="end">{escape(text)}</text>')
        for value, text in x_ticks:
            x0, y0 = self.at(value, bottom)
            self._segment("axis", (x0, y0), (x0, y0 + 4))
            self.parts.append(f'<text class="tick" x="{x0}" y="{y0 + 20}" text-anchor="middle">{escape(text)}</text>')
        self._segment("axis", self.at(left, bottom), self.at(right, bottom))

    def _segment(self, css: str, start: tuple[float, float], end: tuple[float, float]) -> None:
        self.parts.append(f'<line class="{css}" x1="{start[0]}" y1="{start[1]}" x2="{end[0]}" y2="{end[1]}"/>')

    def _line(self, x: FloatArray, y: FloatArray, css: str) -> None:
        runs: list[list[str]] = [[]]
        for a, b in zip(x.tolist(), y.tolist(), strict=True):
            if np.isfinite(b):
                runs[-1].append("{},{}".format(*self.at(a, b)))
            elif runs[-1]:
                runs.append([])
        for points in runs:
            if len(points) > 1:
                drawn = f'clip-path="url(#{self.clip})" points="{" ".join(points)}"'
                self.parts.append(f'<polyline class="{css}" {drawn}/>')

    def _bars(self, bars: Bars) -> None:
        bottom = self.chart.y.low
        for left, right, height in zip(bars.edges[:-1], bars.edges[1:], bars.heights, strict=True):
            (x0, y0), (x1, y1) = self.at(left, bottom), self.at(right, bottom + height)
            self._rectangle(bars.css, x0 + 1, y1, max(x1 - x0 - 2, 1), y0 - y1)

    def _cells(self, cells: Cells) -> None:
        for row, values in enumerate(cells.levels()):
            for column, level in enumerate(values):
                (x0, y0) = self.at(cells.x_edges[column], cells.y_edges[row])
                (x1, y1) = self.at(cells.x_edges[column + 1], cells.y_edges[row + 1])
                css = "blank" if np.isnan(level) else f"h{int(level)}"
                self._rectangle(css, x0, y1, x1 - x0 + 0.3, y0 - y1 + 0.3)

    def _rectangle(self, css: str, x: float, y: float, width: float, height: float) -> None:
        self.parts.append(f'<rect class="{css}" x="{x}" y="{y}" width="{width:.2f}" height="{height:.2f}"/>')

    def _dots(self, dots: Dots) -> None:
        for x, y, radius in zip(dots.x, dots.y, dots.radius, strict=True):
            cx, cy = self.at(x, y)
            self.parts.append(f'<circle class="dot {dots.css}" cx="{cx}" cy="{cy}" r="{radius:.2f}"/>')
