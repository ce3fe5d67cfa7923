"""What every report page must be in a real browser: nothing overlaps, leaves the page, is clipped, tiny or faint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from browser import Browser, find_browser

OVERLAPS = """(() => {
  const seen = [...document.querySelectorAll('h1,h2,p,dt,dd,th,td,li,figcaption,summary,svg text')]
    .filter(e => e.getClientRects().length && !e.querySelector('h1,h2,p,dt,dd,th,td,li') && !e.closest('thead'))
    .map(e => [e, e.getBoundingClientRect()]).filter(([e, r]) => r.width > 1 && r.height > 1);
  const bad = [];
  for (let i = 0; i < seen.length; i++) for (let j = i + 1; j < seen.length; j++) {
    const [a, r] = seen[i], [b, s] = seen[j];
    if (a.contains(b) || b.contains(a)) continue;
    const w = Math.min(r.right, s.right) - Math.max(r.left, s.left);
    const h = Math.min(r.bottom, s.bottom) - Math.max(r.top, s.top);
    if (w > 1.5 && h > 1.5) bad.push(a.textContent.slice(0, 30) + ' | ' + b.textContent.slice(0, 30));
  }
  return bad.slice(0, 5);
})()"""
OUTSIDE = """[...document.querySelectorAll('body *')].filter(e => {
  const r = e.getBoundingClientRect(); return r.width > 0 && !e.closest('thead') && !e.closest('defs')
    && e.tagName != 'polyline' && (r.right > innerWidth + 1 || r.left < -1);
}).slice(0, 5).map(e => e.outerHTML.slice(0, 90))"""
SMALLEST = """Math.min(...[...document.querySelectorAll('svg text, small, td, li, p, dd, dt')].filter(e =>
  e.getClientRects().length).map(e => { const svg = e.closest('svg');
  const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
  return parseFloat(getComputedStyle(e).fontSize) * scale; }))"""
CLIPPED = """[...document.querySelectorAll('svg text')].filter(e => e.getClientRects().length).filter(e => {
  const t = e.getBoundingClientRect(), s = e.closest('svg').getBoundingClientRect();
  return t.left < s.left - 1 || t.right > s.right + 1; }).map(e => e.textContent)"""
CONTRAST = """(() => { const rgb = c => c.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const linear = v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; };
  const lum = c => { const [r, g, b] = rgb(c).map(linear);
    return .2126 * r + .7152 * g + .0722 * b; };
  const page = lum(getComputedStyle(document.body).backgroundColor);
  return Math.min(...[...document.querySelectorAll('p,td,th,dd,dt,li,small,svg text')].map(e => {
    const s = getComputedStyle(e), l = lum(e.closest('svg') ? s.fill : s.color);
    return (Math.max(l, page) + .05) / (Math.min(l, page) + .05); })); })()"""


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser; skips the test where none is installed."""
    executable = find_browser()
    if executable is None:
        pytest.skip("no Chromium is installed")
    opened = Browser(executable)
    try:
        yield opened
    finally:
        opened.close()


def page_faults(browser: Browser, width: int) -> list[str]:
    """What is wrong with the opened page at that width, its details unfolded."""
    browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    found = [f"outside: {x}" for x in browser.evaluate(OUTSIDE)]
    found += [f"overlap: {x}" for x in browser.evaluate(OVERLAPS)]
    found += [f"clipped: {x}" for x in browser.evaluate(CLIPPED)]
    for what, value, least in (
        ("spare width", width - browser.evaluate("document.documentElement.scrollWidth"), 0),
        ("smallest text", browser.evaluate(SMALLEST), 11),
        ("contrast", browser.evaluate(CONTRAST), 4.5),
    ):
        if value < least:
            found.append(f"{what} {value} < {least}")
    return found
