"""Rows of one file, read so that a damaged row costs that row and a damaged file the rest of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from viprl._tables import Row, id_text, number, read_rows
from viprl.errors import InvalidInputError
from viprl.prompts import content_hash, plain_text
from viprl.replay.readers.report import ReadReport

LARGEST = 2.0**53  # whole numbers beyond it are no longer told apart


def rows_of(path: Path, report: ReadReport, columns: Collection[str] | None = None) -> Iterator[tuple[int, Row]]:
    """(line or row number, row) of every row that can be read; what cannot is noted in the report."""
    report.files += 1
    last = 0

    def malformed(line: int, reason: str) -> None:
        report.rows += 1
        report.bad(path.name, line, reason)

    try:
        for line, row in read_rows(path, malformed=malformed, columns=columns):
            last = line
            report.rows += 1
            yield line, row
    except InvalidInputError as error:
        malformed(last + 1, str(error).removeprefix(f"{path} "))


def numbers_of(
    path: Path, report: ReadReport, names: dict[str, str], wanted: Collection[str], *, optional: str | None = None
) -> Iterator[tuple[int, str, dict[str, float]]]:
    """(line, prompt_id, numbers) of every row that has an id and numbers; the others are noted in the report.

    Args:
        names: canonical name -> column.
        wanted: which of them are numbers; NaN where missing.
        optional: a row without this number is left out, and not for a fault.
    """
    for line, row in rows_of(path, report, names.values()):
        try:
            prompt_id, found = prompt_of(row, names, report), numbers(row, {name: names[name] for name in wanted})
        except (ValueError, InvalidInputError) as error:
            report.bad(path.name, line, str(error))
            continue
        if optional is not None and found[optional] != found[optional]:
            report.drop(f"the {optional} is missing")
        elif prompt_id is None:
            report.bad(path.name, line, "prompt_id is missing")
        else:
            yield line, prompt_id, found


def numbers(row: Row, columns: dict[str, str]) -> dict[str, float]:
    """The cells as numbers, NaN where missing.

    Raises:
        ValueError: a cell is no number; the message names the column.
    """
    found: dict[str, float] = {}
    for name, column in columns.items():
        try:
            found[name] = number(row.get(column))
        except ValueError:
            raise ValueError(f"{column} is not a number") from None
    return found


def prompt_of(row: Row, names: dict[str, str], report: ReadReport) -> str | None:
    """The row's prompt_id: its id, or the content hash of its prompt; None where both are missing.

    Raises:
        InvalidInputError: an id that is a list or an object.
    """
    prompt = row.get(names["prompt"]) if "prompt" in names else None
    prompt_id = id_text(row.get(names["prompt_id"])) if "prompt_id" in names else None
    if prompt is not None and prompt_id is None and "prompt_id" not in names:
        prompt_id = content_hash(prompt)
    if prompt_id is not None and prompt and prompt_id not in report.texts:
        report.texts[prompt_id] = plain_text(prompt)
    return prompt_id


def is_whole(value: float) -> bool:
    """A whole number that a float holds exactly."""
    return abs(value) < LARGEST and value == int(value)
