"""One self-contained page, readable on paper, on a phone and in the dark."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from viprl.reports.style import style_sheet


def page(title: str, body: str) -> str:
    """The whole page as HTML: ``body`` under one style sheet, nothing from the network."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style_sheet()}</style></head><body><main>{body}</main></body></html>"
    )


def facts(items: Iterable[tuple[str, str]]) -> str:
    """Names and values in one block."""
    inner = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in items)
    return f'<dl class="facts">{inner}</dl>'


def warnings(texts: Iterable[str]) -> str:
    """A marked paragraph for each text."""
    return "".join(f'<p class="warning">{escape(text)}</p>' for text in texts)
