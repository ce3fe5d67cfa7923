"""What a terminal shows while something runs: one live line, or a few plain lines where the output is no terminal."""

from __future__ import annotations

import sys
import time
from typing import TextIO

WIDTH = 24


class Progress:
    """Says nothing: for quiet calls and for all processes but the first. The others derive from it.

    Use as a context manager, or call ``close`` at the end.
    """

    def start(self, stage: str, total: int) -> None:
        """Begin a stage of ``total`` steps; 0 where their number is unknown."""

    def update(self, done: int, **numbers: float) -> None:
        """``done`` of the stage's steps are done; ``numbers`` are shown beside them."""

    def count(self, done: int, total: int, what: str = "") -> None:
        """As ``update``, for work whose length is known only as it goes; ``what`` has just been finished."""

    def message(self, text: str) -> None:
        """One line of text."""

    def close(self) -> None:
        """The end: leave the terminal at the start of a line."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Written(Progress):
    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._stage, self._total, self._started = "", 0, time.monotonic()

    def start(self, stage: str, total: int) -> None:
        self._stage, self._total, self._started = stage, total, time.monotonic()

    def update(self, done: int, **numbers: float) -> None:
        self._draw(done, "  ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in numbers.items()))

    def count(self, done: int, total: int, what: str = "") -> None:
        self._total = total
        self._draw(done, what)

    def _draw(self, done: int, beside: str) -> None:
        raise NotImplementedError

    def _left(self, done: int) -> str:
        """Time that the rest of the stage takes at the pace so far."""
        if not self._total or not done:
            return ""
        minutes, seconds = divmod(round((time.monotonic() - self._started) / done * (self._total - done)), 60)
        return f"{minutes} min {seconds:02d} s left" if minutes else f"{seconds} s left"


class PlainProgress(_Written):
    """About ``lines`` lines a stage; for logs and pipes."""

    def __init__(self, stream: TextIO | None = None, *, lines: int = 10) -> None:
        super().__init__(stream)
        self._lines, self._printed = lines, 0

    def start(self, stage: str, total: int) -> None:
        super().start(stage, total)
        self._printed = 0
        self.message(f"{stage}: {total} steps" if total else stage)

    def message(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def _draw(self, done: int, beside: str) -> None:
        share = self._lines * done // self._total if self._total else 0
        if share > self._printed:
            self._printed = share
            parts = (f"{self._stage}: {done}/{self._total}".removeprefix(": "), beside, self._left(done))
            self.message("  ".join(part for part in parts if part))


class LiveProgress(_Written):
    """One line, drawn over itself; finished stages stay on the screen."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._longest = 0

    def start(self, stage: str, total: int) -> None:
        self.close()
        super().start(stage, total)
        self._draw(0, "")

    def message(self, text: str) -> None:
        print(f"\r{text:<{self._longest}}", file=self._stream, flush=True)
        self._longest = 0

    def close(self) -> None:
        if self._longest:
            print(file=self._stream, flush=True)
        self._longest = 0

    def _draw(self, done: int, beside: str) -> None:
        share = done / self._total if self._total else 0.0
        bar = f"[{'#' * round(WIDTH * share):<{WIDTH}}] {done}/{self._total}" if self._total else str(done)
        line = "  ".join(part for part in (self._stage, bar, self._left(done), beside) if part)
        self._longest = max(self._longest, len(line))
        print(f"\r{line:<{self._longest}}", end="", file=self._stream, flush=True)


def make_progress(*, show: bool = True, stream: TextIO | None = None) -> Progress:
    """A live line on a terminal, plain lines elsewhere; nothing with ``show`` off.

    Args:
        stream: standard output by default.
    """
    if not show:
        return Progress()
    return LiveProgress(stream) if (stream or sys.stdout).isatty() else PlainProgress(stream)
