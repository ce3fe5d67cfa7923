"""What the terminal shows while a job runs: a live bar, or plain lines where the output is no terminal."""

from __future__ import annotations

import sys
import time
from typing import Any


class PlainProgress:
    """About ``lines`` lines a stage; for logs and pipes."""

    def __init__(self, stream: Any = None, *, lines: int = 10) -> None:
        self._stream = stream or sys.stdout
        self._lines = lines
        self._stage, self._total, self._started, self._printed = "", 0, 0.0, 0

    def start(self, stage: str, total: int) -> None:
        """Begin a stage of ``total`` steps."""
        self._stage, self._total, self._started, self._printed = stage, total, time.monotonic(), 0
        self.message(f"{stage}: {total} steps" if total else stage)

    def update(self, done: int, **numbers: float) -> None:
        """``done`` of the stage's steps are done."""
        share = self._lines * done // self._total if self._total else 0
        if share > self._printed or done == self._total:
            if share == self._printed:
                return
            self._printed = share
            left = (time.monotonic() - self._started) / max(done, 1) * (self._total - done)
            self.message(f"{self._stage}: {done}/{self._total}  {_numbers(numbers)}  {_duration(left)} left")

    def message(self, text: str) -> None:
        """One line of text."""
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing to put away."""


class RichProgress:
    """A live bar for the current stage, with the newest numbers beside it."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bars = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[numbers]}"),
        )
        self._task: Any = None
        self._bars.start()

    def start(self, stage: str, total: int) -> None:
        """Begin a stage of ``total`` steps."""
        self._task = self._bars.add_task(stage, total=total or None, numbers="")

    def update(self, done: int, **numbers: float) -> None:
        """``done`` of the stage's steps are done."""
        self._bars.update(self._task, completed=done, numbers=_numbers(numbers))

    def message(self, text: str) -> None:
        """One line of text above the bars."""
        self._bars.console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        """Leave the finished bars on the screen."""
        self._bars.stop()


class NoProgress:
    """Says nothing; for all processes but the first."""

    def start(self, stage: str, total: int) -> None:
        """Ignored."""

    def update(self, done: int, **numbers: float) -> None:
        """Ignored."""

    def message(self, text: str) -> None:
        """Ignored."""

    def close(self) -> None:
        """Ignored."""


Progress = PlainProgress | RichProgress | NoProgress


def make_progress(*, main_process: bool = True) -> Progress:
    """A live display on a terminal, lines elsewhere, nothing on other processes."""
    if not main_process:
        return NoProgress()
    return RichProgress() if sys.stdout.isatty() else PlainProgress()


def _numbers(numbers: dict[str, float]) -> str:
    return "  ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in numbers.items())


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
