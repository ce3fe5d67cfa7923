"""Tables that people have, as rows: parquet, CSV, TSV and JSON lines, the text kinds also compressed (.gz).

One set of rules for every command. No type is guessed: CSV cells stay as they are written, integers beside nulls stay
integers, chat messages of a parquet file are lists and objects as in JSON. **Ids are text, and empty is the only
missing one** (``id_text``). A damaged record is reported with its line and costs that record; a damaged file is one
error that names the file and the rule.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

from viprl.errors import InvalidInputError, MissingDependencyError

Row = dict[str, Any]
Malformed = Callable[[int, str], None]
Kind = Literal["parquet", "csv", "json"]

_KINDS: dict[str, Kind] = {
    ".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "csv",
    ".jsonl": "json", ".ndjson": "json", ".json": "json",
}  # fmt: skip
SUFFIXES = tuple(_KINDS)
_CELL_LIMIT = 2**31 - 1  # characters; the largest that csv takes on every platform


def table_kind(path: str | Path) -> Kind:
    """What a file is read as, by its suffix; a name without one (a pipe) is JSON lines.

    Raises:
        InvalidInputError: another suffix.
    """
    suffix = _suffix(Path(path))
    if suffix and suffix not in _KINDS:
        raise InvalidInputError(f"a table must end in one of {', '.join(SUFFIXES)}, but got {path}")
    return _KINDS.get(suffix, "json")


def read_rows(
    path: str | Path, *, malformed: Malformed | None = None, columns: Collection[str] | None = None
) -> Iterator[tuple[int, Row]]:
    """(number, row) of every record, read as it goes.

    Args:
        path: the table. A ``.json`` file may also be one array of objects.
        malformed: called with (number, reason) for a record that cannot be read, which is then passed over; by default
            it is an error.
        columns: the only columns wanted; those that the file lacks are passed over.

    Returns:
        Rows with the line on which each begins, from 1; for parquet and JSON arrays the number of the row.

    Raises:
        InvalidInputError: a damaged file, an unknown kind, a CSV header that is missing or names a column twice; and a
            malformed record without ``malformed``.
        MissingDependencyError: parquet without pyarrow.
        OSError: no such file, or it may not be read.
    """
    path = Path(path)

    def stop(number: int, reason: str) -> None:
        raise InvalidInputError(f"{path}, line {number}: {reason}")

    kind = table_kind(path)
    if kind == "parquet":
        yield from _parquet_rows(path, columns)
        return
    for number, row in (_csv_rows if kind == "csv" else _json_rows)(path, malformed or stop):
        yield number, row if columns is None else {name: row[name] for name in columns if name in row}


def column_names(path: str | Path) -> list[str]:
    """Names of the columns: of a JSON file those of its first object, empty without one."""
    path = Path(path)
    kind = table_kind(path)
    if kind == "parquet":
        with _parquet_file(path) as file:
            return list(file.schema_arrow.names)
    if kind == "csv":
        with _opened(path) as stream:
            return [name for name in _header(path, _csv_reader(path, stream)) if name]
    return next((list(row) for _, row in _json_rows(path, lambda number, reason: None)), [])


def id_text(value: Any) -> str | None:
    """An id as text, exactly as the table has it; None where it is missing: null, NaN or empty.

    Whole numbers that a writer stored as floats, as pandas does beside a missing one, are the integers they stood for.

    Raises:
        InvalidInputError: lists and objects; floats too large to tell which integer they stood for.

    >>> id_text("0007"), id_text(2**53 + 1), id_text("NA"), id_text("")
    ('0007', '9007199254740993', 'NA', None)
    """
    if _missing(value):
        return None
    if isinstance(value, Mapping | list | tuple | set) or hasattr(value, "shape"):
        raise InvalidInputError(f"an id must be text or a number, but got {type(value).__name__}: {str(value)[:80]}")
    if isinstance(value, float) and value.is_integer():
        if abs(value) >= 2.0**53:
            raise InvalidInputError(f"an id must be text or an exact integer, but got the float {value!r}")
        return str(int(value))
    return str(value)


def number(value: Any) -> float:
    """A cell as a number; NaN where it is missing: null, NaN or empty.

    Raises:
        ValueError: it is none.
    """
    if _missing(value):
        return float("nan")
    if isinstance(value, str) and "_" in value:  # Python's own spelling of numbers
        raise ValueError(f"not a number: {value!r}")
    try:
        return float(value)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"not a number: {str(value)[:80]!r}") from error


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value == "") or (isinstance(value, float) and value != value)


def _suffix(path: Path) -> str:
    name = path.name.lower()
    return Path(name.removesuffix(".gz")).suffix


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, decompressed."""
    file: Any = gzip.open(path, "rb") if path.suffix.lower() == ".gz" else open(path, "rb")
    with file:
        try:
            if file.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                raise InvalidInputError(f"{path} must be text in UTF-8, but it is in UTF-16")
            yield file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InvalidInputError(
                f"{path} must be a whole gzip file, but it is cut off or damaged: {error}"
            ) from error


def _json_rows(path: Path, malformed: Malformed) -> Iterator[tuple[int, Row]]:
    for number, value in _json_values(path, malformed):
        if isinstance(value, dict):
            yield number, value
        else:
            malformed(number, f"must be a JSON object, but is {type(value).__name__}")


def _json_values(path: Path, malformed: Malformed) -> Iterator[tuple[int, Any]]:
    with _opened(path) as file:
        if _suffix(path) == ".json" and file.peek(64).removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"[":  # type: ignore[attr-defined]
            try:
                yield from enumerate(json.loads(_decoded(file.read())), start=1)
            except (ValueError, RecursionError) as error:
                raise InvalidInputError(f"{path} must be a JSON array in UTF-8, but {error}") from error
            return
        for number, raw in enumerate(file, start=1):
            try:
                text = _decoded(raw) if number == 1 else raw.decode()
                if not text.strip():
                    continue
                value = json.loads(text)
            except UnicodeDecodeError as error:
                malformed(number, f"must be UTF-8, but has the byte 0x{raw[error.start]:02x}")
            except (ValueError, RecursionError) as error:
                malformed(number, f"must be JSON, but {error}")
            else:
                yield number, value


def _decoded(raw: bytes) -> str:
    return raw.removeprefix(codecs.BOM_UTF8).decode()


def _csv_rows(path: Path, malformed: Malformed) -> Iterator[tuple[int, Row]]:
    with _opened(path) as stream:
        reader = _csv_reader(path, stream)
        header = _header(path, reader)
        while True:
            line = reader.line_num + 1
            try:
                cells = _next_record(reader)
            except csv.Error as error:
                malformed(line, f"must be CSV, but {error}")
                continue
            if cells is None:
                return
            if not cells:  # a blank line
                continue
            if len(cells) != len(header):
                malformed(line, f"must have the header's {len(header)} fields, but has {len(cells)}")
            elif (byte := _undecodable(cells)) is not None:
                malformed(line, f"must be UTF-8, but has the byte 0x{byte:02x}")
            else:
                yield line, {name: cell or None for name, cell in zip(header, cells, strict=True) if name}


def _csv_reader(path: Path, stream: IO[bytes]) -> Any:
    # undecodable bytes come through as surrogates, so that they cost their record and not the file
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    return csv.reader(text, delimiter="\t" if _suffix(path) == ".tsv" else ",", strict=True)


def _header(path: Path, reader: Any) -> list[str]:
    try:
        header = [name.strip() for name in _next_record(reader) or []]
    except csv.Error as error:
        raise InvalidInputError(f"{path}, line 1: must be CSV, but {error}") from error
    twice = [name for name, count in Counter(header).items() if name and count > 1]
    if not any(header) or twice or _undecodable(header) is not None:
        found = f"names {twice[0]!r} twice" if twice else f"is {header}"
        raise InvalidInputError(f"{path}, line 1: must be a header in UTF-8 with distinct names, but {found}")
    return header


def _next_record(reader: Any) -> list[str] | None:
    limit = csv.field_size_limit(_CELL_LIMIT)  # the setting is the process's, so it is put back
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(limit)


def _undecodable(cells: list[str]) -> int | None:
    for cell in cells:
        if not cell.isascii():
            try:
                cell.encode()
            except UnicodeEncodeError as error:
                return ord(cell[error.start]) - 0xDC00
    return None


def _parquet_rows(path: Path, columns: Collection[str] | None) -> Iterator[tuple[int, Row]]:
    with _parquet_file(path) as file:
        names = file.schema_arrow.names
        wanted = [name for name in names if columns is None or name in columns]
        if not wanted:
            yield from ((number, {}) for number in range(1, file.metadata.num_rows + 1))
            return
        number = 0
        for batch in file.iter_batches(batch_size=1024, columns=wanted):
            for row in batch.to_pylist():
                number += 1
                yield number, {name: _plain(value) for name, value in row.items()}


@contextmanager
def _parquet_file(path: Path) -> Iterator[Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError.of("reading parquet", "pyarrow") from error
    with open(path, "rb") as stream:
        try:
            file = pyarrow.parquet.ParquetFile(stream)
            names = file.schema_arrow.names
            if len(set(names)) < len(names):
                raise InvalidInputError(f"{path} must have distinct column names, but has {names}")
            yield file
        except (pyarrow.ArrowException, OSError) as error:
            raise InvalidInputError(f"{path} must be a whole parquet file, but {error}") from error


def _plain(value: Any) -> Any:
    """Text that an old writer stored as bare bytes, as text."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value
