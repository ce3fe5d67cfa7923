"""A progress bar on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from viprl.replay.compare import Progress

WIDTH = 30


@contextmanager
def progress_bar(show: bool) -> Iterator[Progress | None]:
    """A function for ``compare(progress=...)``, or None."""
    if not show:
        yield None
        return
    start = time.monotonic()
    longest = 0

    def draw(done: int, total: int, name: str) -> None:
        nonlocal longest
        share = done / total if total else 1.0
        spent = time.monotonic() - start
        left = f"{spent / share - spent:4.0f} s left" if share > 0.02 else ""
        bar = "#" * round(WIDTH * share)
        line = f"\r[{bar:<{WIDTH}}] {100 * share:3.0f} %  {spent:4.0f} s  {left}  {name}"
        longest = max(longest, len(line))
        print(line.ljust(longest), end="", file=sys.stderr, flush=True)

    try:
        yield draw
    finally:
        if longest:
            print(file=sys.stderr)
