"""Small SVG charts by hand: crisp at every size, coloured by the page's style sheet (light, dark, print)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from viprl._arrays import FloatArray

WIDE, NARROW = 880, 344


@dataclass(frozen=True)
class Key:
    """An entry of a legend: css class and text."""

    css: str
    text: str


class Axes:
    """One plot area with linear axes; elements are collected and come out as an ``<svg>``.

    Args:
        width, height: in user units, which are pixels where the page shows the chart at its natural size.
        x, y: ranges of the data.
        label: for screen readers.
    """

    def __init__(
        self,
        width: int,
        height: int,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        label: str,
        left: int = 46,
        bottom: int = 46,
        top: int = 10,
        right: int = 26,
    ) -> None:
        self.width, self.height, self.x, self.y, self.label = width, height, x, y, label
        self.left, self.bottom, self.top, self.right = left, bottom, top, right
        self.parts: list[str] = []
        self.clip = f"clip-{abs(hash((width, height, x, y, label))) % 10**8}"

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Data to user units."""
        u = (x - self.x[0]) / (self.x[1] - self.x[0])
        v = (y - self.y[0]) / (self.y[1] - self.y[0])
        inner_width = self.width - self.left - self.right
        inner_height = self.height - self.top - self.bottom
        return round(self.left + u * inner_width, 2), round(self.top + (1 - v) * inner_height, 2)

    def grid(self, x_ticks: Sequence[tuple[float, str]], y_ticks: Sequence[tuple[float, str]]) -> None:
        """Tick labels on both axes, lines across for y."""
        for value, text in y_ticks:
            x0, y0 = self.at(self.x[0], value)
            x1, _ = self.at(self.x[1], value)
            self.parts.append(f'<line class="grid" x1="{x0}" y1="{y0}" x2="{x1}" y2="{y0}"/>')
            self.parts.append(f'<text class="tick" x="{x0 - 6}" y="{y0 + 4}" text-anchor="end">{escape(text)}</text>')
        for value, text in x_ticks:
            x0, y0 = self.at(value, self.y[0])
            self.parts.append(f'<line class="axis" x1="{x0}" y1="{y0}" x2="{x0}" y2="{y0 + 4}"/>')
            self.parts.append(f'<text class="tick" x="{x0}" y="{y0 + 20}" text-anchor="middle">{escape(text)}</text>')
        x0, y0 = self.at(self.x[0], self.y[0])
        x1, _ = self.at(self.x[1], self.y[0])
        self.parts.append(f'<line class="axis" x1="{x0}" y1="{y0}" x2="{x1}" y2="{y0}"/>')

    def x_title(self, text: str) -> None:
        middle = (self.left + self.width - self.right) / 2
        self.parts.append(
            f'<text class="title" x="{middle}" y="{self.height - 6}" text-anchor="middle">{escape(text)}</text>'
        )

    def line(self, x: FloatArray, y: FloatArray, css: str) -> None:
        """A polyline, broken where y is not finite."""
        runs: list[list[str]] = [[]]
        for a, b in zip(x.tolist(), y.tolist(), strict=True):
            if np.isfinite(b):
                runs[-1].append("{},{}".format(*self.at(a, b)))
            elif runs[-1]:
                runs.append([])
        for points in runs:
            if len(points) > 1:
                self.parts.append(
                    f'<polyline class="{css}" clip-path="url(#{self.clip})" points="{" ".join(points)}"/>'
                )

    def bars(self, edges: FloatArray, heights: FloatArray, css: str) -> None:
        for left, right, height in zip(edges[:-1].tolist(), edges[1:].tolist(), heights.tolist(), strict=True):
            (x0, y0), (x1, y1) = self.at(left, self.y[0]), self.at(right, self.y[0] + height)
            self.parts.append(
                f'<rect class="{css}" x="{x0 + 1}" y="{y1}" width="{max(x1 - x0 - 2, 1):.2f}" height="{y0 - y1:.2f}"/>'
            )

    def dots(self, x: FloatArray, y: FloatArray, radius: FloatArray, css: str) -> None:
        for a, b, r in zip(x.tolist(), y.tolist(), radius.tolist(), strict=True):
            cx, cy = self.at(a, b)
            self.parts.append(f'<circle class="{css}" cx="{cx}" cy="{cy}" r="{r:.2f}"/>')

    def render(self) -> str:
        x0, y1 = self.at(self.x[0], self.y[1])
        x1, y0 = self.at(self.x[1], self.y[0])
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}" role="img" '
            f'aria-label="{escape(self.label)}"><defs><clipPath id="{self.clip}"><rect x="{x0}" y="{y1}" '
            f'width="{x1 - x0:.2f}" height="{y0 - y1:.2f}"/></clipPath></defs>{"".join(self.parts)}</svg>'
        )


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


def number(value: float) -> str:
    """A tick label without trailing zeros."""
    return f"{value:.10g}"


def legend(keys: Sequence[Key]) -> str:
    """A list of colours and what they stand for."""
    items = "".join(f'<li><span class="swatch {k.css}"></span>{escape(k.text)}</li>' for k in keys)
    return f'<ul class="legend">{items}</ul>'


def figure(legend_html: str, wide: str, narrow: str) -> str:
    """A chart drawn twice, wide and narrow; the style sheet shows the one that fits."""
    return f'<figure>{legend_html}<div class="wide">{wide}</div><div class="narrow">{narrow}</div></figure>'
