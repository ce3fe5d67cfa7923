"""What a reader found wrong, and what it could not know."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from viprl.errors import InvalidInputError

OnError = Literal["stop", "skip"]
SHOWN = 10


class LogFormatError(InvalidInputError):
    """A log that cannot be read: a malformed row with ``on_error="stop"``, or a file of no known format."""


@dataclass
class ReadReport:
    """Counts and problems of one reading.

    Attributes:
        format: what the files were taken for.
        files, rows: read; ``rows`` are lines of the files, which are rollouts in dumps and visits in histories.
        kept: rows that entered the log.
        malformed: reason -> number of rows.
        examples: the first malformed rows: (file, line or row number from 1, reason).
        dropped: reason -> number of good rows left out on purpose (padding, repeats, missing rewards).
        notices: what the reader could not tell, in sentences.
        texts: prompt_id -> the prompt's text, where the log carries it.
        systematic: malformed rows are no accident.
    """

    format: str
    on_error: OnError = "stop"
    files: int = 0
    rows: int = 0
    kept: int = 0
    malformed: dict[str, int] = field(default_factory=dict)
    examples: list[tuple[str, int, str]] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    systematic: bool = False

    def bad(self, file: str, line: int, reason: str, *, systematic: bool = False) -> None:
        """Note a malformed row; details of the reason after ", but" are kept with the examples alone.

        ``systematic``: rows of this kind differ from the others, so that no replay may leave them out.
        """
        self.systematic = self.systematic or systematic
        kind = reason.partition(", but")[0]
        self.malformed[kind] = self.malformed.get(kind, 0) + 1
        if len(self.examples) < SHOWN:
            self.examples.append((file, line, reason))

    def finish(self) -> None:
        """The end of the reading.

        Raises:
            LogFormatError: there were malformed rows and ``on_error`` is "stop", or systematic ones. To skip them is
                advised only where most rows stay and stand for the others.
        """
        bad = self.malformed_rows
        if not bad:
            return
        self.examples.sort()
        most = 2 * bad >= self.rows and self.rows > 1
        if self.on_error == "stop" or self.systematic:
            file, line, reason = self.examples[0]
            advice = (
                f"so it is with {bad:,} of {self.rows:,} rows, and what is left would not stand for the rest: correct "
                "the file or the options that say how to read it"
                if most or self.systematic
                else f"{bad:,} of {self.rows:,} rows; to go on without such rows: --on-error skip"
            )
            raise LogFormatError(f"{file}, line {line}: {reason} ({advice})")
        if most:
            self.notice(f"MOST ROWS WERE LEFT OUT ({bad:,} of {self.rows:,}): what follows is about the few others")

    def drop(self, reason: str, count: int = 1) -> None:
        """Note good rows left out on purpose."""
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count

    def notice(self, text: str) -> None:
        """Note, once, something that cannot be told."""
        if text not in self.notices:
            self.notices.append(text)

    @property
    def malformed_rows(self) -> int:
        """Rows that could not be read, for whatever reason."""
        return sum(self.malformed.values())

    def lines(self) -> list[str]:
        """The report in words, a line each."""
        out = [
            f"read {self.rows:,} rows of {self.files} file{'s' * (self.files != 1)} as {self.format}; "
            f"kept {self.kept:,}"
        ]
        out += [f"left out {count:,}: {reason}" for reason, count in self.dropped.items()]
        if self.malformed:
            out.append(f"malformed rows: {self.malformed_rows:,}")
            out += [f"  {count:,} x {reason}" for reason, count in self.malformed.items()]
            out += [f"  {file}, line {line}: {reason}" for file, line, reason in self.examples]
            if self.malformed_rows > len(self.examples):
                out.append(f"  ... and {self.malformed_rows - len(self.examples):,} more")
        return out + [f"note: {text}" for text in self.notices]
