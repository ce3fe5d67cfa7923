"""Tables for a page. Every cell carries its column's name, so that a narrow screen can show rows as cards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np


def table_row(cells: Sequence[str], head: Sequence[str], css: str = "") -> str:
    """One row; cells are HTML, the first is the row's name."""
    first, *rest = cells
    body = "".join(
        f'<td data-label="{escape(name)}"><div>{cell}</div></td>' for cell, name in zip(rest, head[1:], strict=True)
    )
    return f'<tr class="{css}"><th scope="row">{first}</th>{body}</tr>'


def table(head: Sequence[str], rows: Iterable[str], css: str = "") -> str:
    """A table of rows made by ``table_row`` with the same ``head``."""
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    return f'<table class="{css}"><thead><tr>{columns}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def interval_bar(estimate: float, low: float, high: float) -> str:
    """A dot with its interval on a logarithmic scale from 0.5 to 3, with a mark at 1; arrows where it leaves it."""
    left, right = np.log(0.5), np.log(3.0)

    def place(value: float) -> float:
        share = (np.log(max(value, 1e-9)) - left) / (right - left)
        return float(round(6 + 128 * np.clip(share, 0, 1), 2))

    one = place(1.0)
    side = "low" if high < 1 else "high" if low > 1 else "even"
    over = '<path class="ci" d="M134 5 l5 4 l-5 4"/>' if estimate > 3 else ""
    return (
        f'<svg class="interval {side}" viewBox="0 0 140 18" width="140" height="18" aria-hidden="true">'
        f'<line class="mark" x1="{one}" y1="1" x2="{one}" y2="17"/>'
        f'<line class="ci" x1="{place(low)}" y1="9" x2="{place(high)}" y2="9"/>'
        f'<circle class="ci" cx="{place(estimate)}" cy="9" r="4"/>{over}</svg>'
    )


def bars(items: Sequence[tuple[str, float, str]]) -> str:
    """A list of (name, length, words) as horizontal bars; lengths are relative to the longest."""
    longest = max((length for _, length, _ in items), default=0.0) or 1.0
    rows = "".join(
        f'<li><span class="name">{escape(name)}</span>'
        f'<span class="bar"><span style="width:{100 * length / longest:.1f}%"></span></span>'
        f'<span class="value">{escape(words)}</span></li>'
        for name, length, words in items
    )
    return f'<ul class="bars">{rows}</ul>'
