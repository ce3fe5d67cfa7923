"""Completions of a model, gathered by problem, from files that people have.

A row is one completion: the problem's id (or its text), the completion, and either whether it is correct or the gold
answers. Gold answers may also come from a second file. verl's dumps (input, output, gts, score) are read as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from viprl.errors import InvalidInputError, MissingDependencyError
from viprl.prompts.ids import content_hash

DEFAULTS: dict[str, tuple[str, ...]] = {
    "id": ("prompt_id", "id", "problem_id"),
    "problem": ("problem", "question", "prompt", "input"),
    "completion": ("completion", "output", "response", "prediction"),
    "correct": ("correct", "score", "reward"),
    "gold": ("gold", "answers", "answer", "gts"),
    "retrieved": ("retrieved",),
    "supporting": ("supporting",),
}


@dataclass
class Problem:
    """One problem with its completions, in the order of the file.

    Attributes:
        id: stable id, or a hash of the problem's text.
        completions: texts; None where the row has none.
        correct: in [0, 1]; None where the file does not say.
        gold: acceptable answers; empty where the file does not say.
        retrieved: ids of the passages found, of each completion; None where the file does not say.
        supporting: ids of the passages that hold the answer.
    """

    id: str
    completions: list[str | None] = field(default_factory=list)
    correct: list[float | None] = field(default_factory=list)
    gold: list[str] = field(default_factory=list)
    retrieved: list[list[str] | None] = field(default_factory=list)
    supporting: list[str] = field(default_factory=list)


def read_completions(
    path: str | Path, *, columns: Mapping[str, str] | None = None, gold: str | Path | None = None
) -> list[Problem]:
    """Problems of a JSONL or parquet file.

    Args:
        path: the completions.
        columns: id, problem, completion, correct, gold, retrieved, supporting -> column name; other names are guessed.
        gold: a file with the problems' ids (or texts) and gold answers.

    Raises:
        InvalidInputError: a malformed row (with its number), rows without identity, a problem without a gold answer in
            ``gold``.
    """
    problems = gather(_rows(Path(path)), columns=columns, source=str(path))
    if gold is not None:
        _add_gold(problems, Path(gold), columns or {})
    return problems


def gather(
    rows: Iterable[tuple[int, Mapping[str, Any]]], *, columns: Mapping[str, str] | None = None, source: str = "rows"
) -> list[Problem]:
    """Problems of (row number, row) pairs."""
    problems: dict[str, Problem] = {}
    for number, row in rows:
        names = {what: _column(row, what, columns or {}) for what in DEFAULTS}
        problem_id = _identity(row, names, source, number)
        problem = problems.setdefault(problem_id, Problem(problem_id))
        text = None if names["completion"] is None else row[names["completion"]]
        problem.completions.append(_text(text, source, number))
        problem.correct.append(_correct(None if names["correct"] is None else row[names["correct"]], source, number))
        problem.gold = problem.gold or _strings(None if names["gold"] is None else row[names["gold"]])
        found = None if names["retrieved"] is None else row[names["retrieved"]]
        problem.retrieved.append(None if found is None else _strings(found))
        problem.supporting = problem.supporting or _strings(
            None if names["supporting"] is None else row[names["supporting"]]
        )
    if not problems:
        raise InvalidInputError(f"{source} must have at least one completion, but has none")
    return list(problems.values())


def _add_gold(problems: Sequence[Problem], path: Path, columns: Mapping[str, str]) -> None:
    answers: dict[str, list[str]] = {}
    for number, row in _rows(path):
        names = {what: _column(row, what, columns) for what in ("id", "problem", "gold")}
        if names["gold"] is None:
            raise InvalidInputError(f"{path}, row {number} must have a gold answer, but has only {sorted(row)}")
        for name in (names["id"], names["problem"]):
            if name is not None and row[name] is not None:
                key = str(row[name]) if name == names["id"] else content_hash(str(row[name]))
                answers.setdefault(key, _strings(row[names["gold"]]))
    for problem in problems:
        if problem.id not in answers:
            raise InvalidInputError(f"every problem needs a gold answer in {path}, but {problem.id!r} has none")
        problem.gold = answers[problem.id]


def _rows(path: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    if path.suffix == ".parquet":
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingDependencyError("reading parquet needs pandas: pip install 'viprl[report]'") from error
        yield from enumerate(pd.read_parquet(path).to_dict("records"), start=1)
        return
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise InvalidInputError(f"{path}, line {number} must be JSON, but {error.msg}") from error
            if not isinstance(row, dict):
                raise InvalidInputError(f"{path}, line {number} must be a JSON object, but is {type(row).__name__}")
            yield number, row


def _column(row: Mapping[str, Any], what: str, columns: Mapping[str, str]) -> str | None:
    if what in columns:
        return columns[what] if columns[what] in row else None
    return next((name for name in DEFAULTS[what] if name in row), None)


def _identity(row: Mapping[str, Any], names: Mapping[str, str | None], source: str, number: int) -> str:
    name = names["id"]
    if name is not None and row[name] is not None:
        return str(row[name])
    name = names["problem"]
    if name is not None and row[name] is not None:
        return content_hash(row[name])
    raise InvalidInputError(
        f"{source}, row {number} must name its problem (one of {DEFAULTS['id']} or {DEFAULTS['problem']}), "
        f"but has only {sorted(row)}"
    )


def _text(value: Any, source: str, number: int) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Sequence) and value and isinstance(value[-1], Mapping):  # chat messages
        return str(value[-1].get("content") or "")
    raise InvalidInputError(f"{source}, row {number}: a completion must be text, but is {type(value).__name__}")


def _correct(value: Any, source: str, number: int) -> float | None:
    if value is None or value != value:
        return None
    if isinstance(value, bool | int | float) and value in (-1, 0, 1):
        return max(float(value), 0.0)
    if isinstance(value, int | float) and 0 <= value <= 1:
        return float(value)
    raise InvalidInputError(f"{source}, row {number}: correctness must be in [0, 1] or -1, but is {value!r}")


def _strings(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str | int | float | bool):
        return [str(value)]
    return [str(item) for item in value]
