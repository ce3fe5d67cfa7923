"""Prompts from a JSONL, Parquet or CSV file, with errors that name the row."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from viprl.errors import InvalidInputError, MissingDependencyError

TEXT_COLUMNS = ("text", "prompt", "question", "problem")


@dataclass(frozen=True)
class PromptTable:
    """Rows of a prompts file.

    Attributes:
        rows: the records.
        texts: one per row: strings, or conversations as lists of messages.
        text_column: where the texts lie.
    """

    rows: list[dict[str, Any]]
    texts: list[Any]
    text_column: str


def read_prompt_table(path: str | Path, *, text_column: str | None = None) -> PromptTable:
    """Read a prompts file; ``text_column`` is by default the first of text, prompt, question, problem.

    Raises:
        InvalidInputError: an unknown kind of file, no rows, a malformed row (with its number), a missing column, a row
            without text.
        FileNotFoundError: there is no such file.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    readers = {".jsonl": _jsonl, ".ndjson": _jsonl, ".csv": _csv, ".parquet": _parquet}
    if path.suffix.lower() not in readers:
        raise InvalidInputError(f"a prompts file must end in {', '.join(readers)}, but got {path}")
    rows = list(readers[path.suffix.lower()](path))
    if not rows:
        raise InvalidInputError(f"{path} must hold at least one prompt, but it has no rows")
    column = _choose_column(path, rows, text_column)
    texts = []
    for number, row in enumerate(rows, start=1):
        if column not in row:
            raise InvalidInputError(f"{path}, row {number}: every row must have {column!r}, but this has {sorted(row)}")
        if not _has_text(row[column]):
            raise InvalidInputError(
                f"{path}, row {number}: {column!r} must be a text that is not empty, but got {row[column]!r}"
            )
        texts.append(row[column])
    return PromptTable(rows, texts, column)


def table_prompt_ids(path: str | Path, table: PromptTable, id_column: str | None = None) -> list[str]:
    """One prompt_id per row; ``id_column`` is by default ``prompt_id`` or ``id`` where all rows have it.

    Raises:
        InvalidInputError: a row lacks the id column, or an id occurs twice.
    """
    from viprl.prompts.ids import resolve_prompt_ids

    rows, texts, column = table.rows, table.texts, id_column
    if column is None:
        column = next((name for name in ("prompt_id", "id") if all(name in row for row in rows)), None)
    elif not all(column in row for row in rows):
        missing = next(number for number, row in enumerate(rows, start=1) if column not in row)
        raise InvalidInputError(
            f"{path}, row {missing}: every row must have the id column {column!r}, but this has only "
            f"{sorted(rows[missing - 1])}"
        )
    ids = resolve_prompt_ids(rows, id_column=column, prompt_column=table.text_column)
    first: dict[str, int] = {}
    for number, prompt_id in enumerate(ids, start=1):
        if first.setdefault(prompt_id, number) != number:
            same = texts[first[prompt_id] - 1] == texts[number - 1]
            raise InvalidInputError(
                f"{path}, rows {first[prompt_id]} and {number}: prompt ids must be unique, but both have {prompt_id!r} "
                f"({'the same text' if same else 'different texts'})"
            )
    return ids


def _choose_column(path: Path, rows: list[dict[str, Any]], wanted: str | None) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    if wanted is not None:
        if wanted not in names:
            raise InvalidInputError(f"{path} must have the column {wanted!r}, but has only {names}")
        return wanted
    for name in TEXT_COLUMNS:
        if name in names:
            return name
    raise InvalidInputError(
        f"{path} must have one of the columns {list(TEXT_COLUMNS)} or --text-column must name one, but has only {names}"
    )


def _has_text(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) and "role" in item for item in value)


def _jsonl(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if not line:
                    continue
                row = json.loads(line)
            except ValueError as error:
                raise InvalidInputError(
                    f"{path}, line {number}: every line must be a JSON object in UTF-8, but: {error}"
                ) from error
            if not isinstance(row, dict):
                raise InvalidInputError(
                    f"{path}, line {number}: every line must be a JSON object, but got {type(row).__name__}"
                )
            yield row


def _csv(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            for row in reader:
                if None in row or None in row.values():
                    raise InvalidInputError(
                        f"{path}, line {reader.line_num}: every row must have the header's "
                        f"{len(reader.fieldnames or [])} fields"
                    )
                yield dict(row)
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path} must be a CSV file in UTF-8, but: {error}") from error


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingDependencyError("Parquet files need pyarrow: pip install 'viprl[report]'") from error
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidInputError(f"{path} must be a Parquet file, but: {error}") from error
    yield from table.to_pylist()
