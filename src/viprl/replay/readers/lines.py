"""JSON Lines, read so that a damaged line costs that line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from viprl.replay.readers.report import ReadReport


def json_lines(path: Path, report: ReadReport) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every line that holds a JSON object; blank lines are passed over.

    Undecodable bytes, half a line at the end of a file whose writer was killed, and values that are no objects are
    noted in the report.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.strip():
                continue
            report.rows += 1
            try:
                row = json.loads(raw)
            except (json.JSONDecodeError, UnicodeDecodeError):
                report.bad(path.name, number, "not valid JSON")
                continue
            if isinstance(row, dict):
                yield number, row
            else:
                report.bad(path.name, number, "not a JSON object")


def first_object(path: Path) -> dict[str, Any] | None:
    """The first line that is a JSON object, among the first hundred lines."""
    for _, row in zip(range(100), json_lines(path, ReadReport("", on_error="skip")), strict=False):
        return row[1]
    return None
