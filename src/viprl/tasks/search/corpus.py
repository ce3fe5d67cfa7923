"""Corpora: any folder, JSONL, JSON or parquet file of passages, and the paragraphs that MuSiQue and HotpotQA carry."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from viprl.errors import InvalidInputError, MissingDependencyError
from viprl.tasks.search.passages import Passage

TEXT_SUFFIXES = (".txt", ".md")
RECORD_SUFFIXES = (".jsonl", ".json", ".parquet")


def load_corpus(path: str | Path, *, chunk_words: int = 200) -> list[Passage]:
    """Read the passages under `path`, without duplicates, in file order.

    Args:
        path: a JSONL, JSON or parquet file of records, a text file, or a folder of such files (read recursively,
            sorted by name). A record is a passage (``title``/``text``, ``contents``, ...) or a question record that
            carries its paragraphs (MuSiQue's ``paragraphs``, HotpotQA's ``context``).
        chunk_words: longest chunk of a plain-text file, which is cut at blank lines and then at this many words.

    Raises:
        InvalidInputError: nothing there, an unknown kind of file, or a record without text.
    """
    root = Path(path)
    if chunk_words < 1:
        raise InvalidInputError(f"chunk_words >= 1 must hold, but got {chunk_words}")
    if not root.exists():
        raise InvalidInputError(f"a corpus must be a file or folder, but {str(root)!r} does not exist")
    files = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.suffix.lower() in _SUFFIXES)
    passages = unique_passages(passage for file in files for passage in _read(file, chunk_words))
    if not passages:
        raise InvalidInputError(
            f"a corpus must hold at least one passage, but {str(root)!r} has {len(files)} readable files and none"
        )
    return passages


def unique_passages(passages: Iterable[Passage]) -> list[Passage]:
    """Drop repeated passages (same id and contents); the same id with different contents is an error."""
    seen: dict[str, Passage] = {}
    for passage in passages:
        first = seen.setdefault(passage.id, passage)
        if first.contents != passage.contents:
            raise InvalidInputError(
                f"passage ids must be unique, but {passage.id!r} names {first.contents[:60]!r} "
                f"and {passage.contents[:60]!r}"
            )
    return list(seen.values())


def record_passages(record: Mapping[str, Any]) -> list[Passage]:
    """The passages of one record: its paragraphs, its HotpotQA context, or itself."""
    if isinstance(record.get("paragraphs"), Iterable) and not isinstance(record["paragraphs"], str):
        return [
            Passage(text=str(p.get("paragraph_text", p.get("text", ""))), title=str(p.get("title", "")))
            for p in record["paragraphs"]
        ]
    if "context" in record and not isinstance(record["context"], str):
        return [
            Passage(text="".join(sentences).strip(), title=title)
            for title, sentences in hotpot_context(record["context"])
        ]
    return [Passage.from_document(record)]


def hotpot_context(context: Any) -> list[tuple[str, list[str]]]:
    """HotpotQA's context as (title, sentences), from the original list of pairs or the hub's columns."""
    if isinstance(context, Mapping):
        return [(str(t), [str(s) for s in ss]) for t, ss in zip(context["title"], context["sentences"], strict=True)]
    return [(str(title), [str(s) for s in sentences]) for title, sentences in context]


def read_records(path: str | Path) -> Iterator[dict[str, Any]]:
    """Records of a JSONL, JSON (a list, or an object with one list) or parquet file.

    Raises:
        InvalidInputError: a line that is not a JSON object; the message names file and line.
    """
    file = Path(path)
    suffix = file.suffix.lower()
    if suffix == ".parquet":
        yield from _read_parquet(file)
        return
    if suffix == ".json":
        loaded = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(loaded, dict):
            lists = [value for value in loaded.values() if isinstance(value, list)]
            loaded = lists[0] if len(lists) == 1 else [loaded]
        rows: Iterable[tuple[int, Any]] = enumerate(loaded, start=1)
    elif suffix == ".jsonl":
        rows = _json_lines(file)
    else:
        raise InvalidInputError(f"records must be in one of {RECORD_SUFFIXES}, but got {file.name!r}")
    for number, row in rows:
        if not isinstance(row, dict):
            raise InvalidInputError(f"every record must be a JSON object, but {file.name}:{number} is not")
        yield row


_SUFFIXES = TEXT_SUFFIXES + RECORD_SUFFIXES


def _read(file: Path, chunk_words: int) -> Iterator[Passage]:
    suffix = file.suffix.lower()
    if suffix in TEXT_SUFFIXES:
        yield from _chunks(file, chunk_words)
        return
    for number, record in enumerate(read_records(file), start=1):
        try:
            yield from record_passages(record)
        except (InvalidInputError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInputError(
                f"every record of a corpus must hold text, but {file.name}:{number} does not: {error}"
            ) from error


def _chunks(file: Path, chunk_words: int) -> Iterator[Passage]:
    text = file.read_text(encoding="utf-8", errors="replace")
    for block in text.split("\n\n"):
        words = block.split()
        for start in range(0, len(words), chunk_words):
            yield Passage(text=" ".join(words[start : start + chunk_words]), title=file.stem)


def _json_lines(file: Path) -> Iterator[tuple[int, Any]]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except json.JSONDecodeError as error:
                    raise InvalidInputError(f"every line must be JSON, but {file.name}:{number}: {error}") from error


def _read_parquet(file: Path) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MissingDependencyError.of("reading parquet", "pyarrow") from error
    for batch in parquet.ParquetFile(file).iter_batches(batch_size=1024):
        yield from batch.to_pylist()
