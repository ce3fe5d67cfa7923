"""Completions of a model, gathered by problem, from files that people have.

A row is one completion: the problem's id (or its text), the completion, and either whether it is correct or the gold
answers. Gold answers may also come from a second file. verl's dumps (input, output, gts, score) are read as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from viprl._tables import id_text, number, read_rows
from viprl.errors import ConfigurationError, InvalidInputError
from viprl.prompts.ids import content_hash, plain_text

NAMES: dict[str, tuple[str, ...]] = {
    "id": ("prompt_id", "id", "problem_id"),
    "problem": ("problem", "question", "prompt", "input"),
    "completion": ("completion", "output", "response", "prediction"),
    "extracted": ("extracted_answer", "extracted", "pred"),
    "correct": ("correct", "score", "reward"),
    "gold": ("gold", "answers", "answer", "gts"),
    "retrieved": ("retrieved",),
    "supporting": ("supporting",),
}
_TRUTH = {"true": 1.0, "false": 0.0}


@dataclass
class Problem:
    """One problem with its completions, in the order of the file.

    Attributes:
        id: stable id, or a hash of the problem's text.
        completions: texts; None where the row has none.
        extracted: the answer that the file itself gives of each completion; None where it gives none.
        correct: in [0, 1]; None where the file does not say.
        gold: acceptable answers; empty where the file does not say.
        retrieved: ids of the passages found, of each completion; None where the file does not say.
        supporting: ids of the passages that hold the answer.
    """

    id: str
    completions: list[str | None] = field(default_factory=list)
    extracted: list[str | None] = field(default_factory=list)
    correct: list[float | None] = field(default_factory=list)
    gold: list[str] = field(default_factory=list)
    retrieved: list[list[str] | None] = field(default_factory=list)
    supporting: list[str] = field(default_factory=list)


@dataclass
class Completions:
    """What a file holds.

    Attributes:
        problems: in the order of their first row.
        columns: id, problem, completion, extracted, correct, gold, retrieved, supporting -> the column that was read,
            the same for every row; absent where the file has none.
        unread: the other columns.
        notes: what was found on the way, in sentences.
    """

    problems: list[Problem]
    columns: dict[str, str]
    unread: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_completions(
    path: str | Path, *, columns: Mapping[str, str] | None = None, gold: str | Path | None = None
) -> Completions:
    """Problems of a JSONL, CSV, TSV or parquet file.

    Args:
        path: the completions.
        columns: id, problem, completion, ... (the keys of ``NAMES``) -> column name; other names are guessed.
        gold: a file with the problems' ids (or texts) and gold answers.

    Raises:
        ConfigurationError: ``columns`` has an unknown key, or names a column that the file lacks.
        InvalidInputError: a damaged file, a malformed row (with its number), rows without identity, a problem without
            a gold answer in ``gold``.
    """
    own = {what: name for what, name in (columns or {}).items() if gold is None or what != "gold"}
    found = gather(read_rows(path), columns=own, source=str(path))
    if gold is not None:
        answers = _gold_answers(Path(gold), columns or {})
        for problem in found.problems:
            if problem.id not in answers:
                raise InvalidInputError(f"every problem needs a gold answer in {gold}, but {problem.id!r} has none")
            problem.gold = answers[problem.id]
    return found


def gather(
    rows: Iterable[tuple[int, Mapping[str, Any]]], *, columns: Mapping[str, str] | None = None, source: str = "rows"
) -> Completions:
    """Problems of (row number, row) pairs; see ``read_completions``."""
    table = list(rows)
    if not table:
        raise InvalidInputError(f"{source} must have at least one completion, but has none")
    names = _chosen(table, columns or {}, source)
    problems: dict[str, Problem] = {}
    texts: dict[str, set[str]] = defaultdict(set)
    without_id = other_gold = 0
    for row_number, row in table:
        cell = {what: row.get(name) for what, name in names.items()}
        try:
            named, text = _identities(cell)
            if named is None and text is None:
                raise InvalidInputError(
                    f"must name its problem (one of {NAMES['id']} or {NAMES['problem']}), but has only {sorted(row)}"
                )
            problem_id = named or str(text)
            problem = problems.setdefault(problem_id, Problem(problem_id))
            if text is not None:
                texts[problem_id].add(text)
            without_id += named is None and "id" in names
            gold = _strings(cell.get("gold"))
            other_gold += bool(problem.gold and gold and problem.gold != gold)
            problem.gold = problem.gold or gold
            problem.completions.append(_text(cell.get("completion")))
            problem.extracted.append(next(iter(_strings(cell.get("extracted"))), None))
            problem.correct.append(_correct(cell.get("correct")))
            problem.retrieved.append(None if cell.get("retrieved") is None else _strings(cell["retrieved"]))
            problem.supporting = problem.supporting or _strings(cell.get("supporting"))
        except InvalidInputError as error:
            raise InvalidInputError(f"{source}, row {row_number}: {error}") from error
    present = dict.fromkeys(name for _, row in table for name in row)
    result = Completions(list(problems.values()), names, [name for name in present if name not in names.values()])
    several = sum(len(found) > 1 for found in texts.values())
    repeated = len(texts) - len(set().union(*texts.values())) if texts and not several else 0
    for count, sentence in (
        (without_id, "rows have no id and go by the text of their problem"),
        (several, "ids name several different problems; --columns id=NAME names another column"),
        (repeated, "problems repeat the text of another under an id of their own"),
        (other_gold, "rows have other gold answers than the first row of their problem, whose answers count"),
    ):
        if count:
            result.notes.append(f"{count:,} {sentence}")
    return result


def _chosen(table: Sequence[tuple[int, Mapping[str, Any]]], columns: Mapping[str, str], source: str) -> dict[str, str]:
    """The column of each thing, one for all rows; of the guesses the first that has a value, else the first there."""
    unknown = sorted(set(columns) - set(NAMES))
    if unknown:
        raise ConfigurationError(f"--columns must map {', '.join(NAMES)} to columns, but got {', '.join(unknown)}")
    present = list(dict.fromkeys(name for _, row in table for name in row))
    filled = {name for _, row in table for name, value in row.items() if value is not None and value == value}
    chosen = {}
    for what, guesses in NAMES.items():
        if what in columns and columns[what] not in present:
            raise ConfigurationError(
                f"--columns must name columns of {source}, but {what}={columns[what]} is none; it has {present}"
            )
        candidates = [name for name in ([columns[what]] if what in columns else guesses) if name in present]
        if candidates:
            chosen[what] = next((name for name in candidates if name in filled), candidates[0])
    return chosen


def _gold_answers(path: Path, columns: Mapping[str, str]) -> dict[str, list[str]]:
    """Gold answers by id and by the hash of the problem's text."""
    table = list(read_rows(path))
    present = {name for _, row in table for name in row}
    known = {what: columns[what] for what in ("id", "problem") if columns.get(what) in present}
    if "gold" in columns:
        known["gold"] = columns["gold"]
    names = _chosen(table, known, str(path))
    answers: dict[str, list[str]] = {}
    for row_number, row in table:
        cell = {what: row.get(name) for what, name in names.items()}
        gold = _strings(cell.get("gold"))
        if not gold:
            raise InvalidInputError(f"{path}, row {row_number} must have a gold answer, but has only {sorted(row)}")
        for key in _identities(cell):
            if key is not None and answers.setdefault(key, gold) != gold:
                raise InvalidInputError(f"{path}, row {row_number}: the problem {key!r} has other gold answers above")
    return answers


def _identities(cell: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """(id, hash of the problem's text), each None where the row has none."""
    problem = cell.get("problem")
    absent = problem is None or problem == "" or problem != problem
    return id_text(cell.get("id")), None if absent else content_hash(problem)


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and value != value:
        return None
    if isinstance(value, list) and value and all(isinstance(message, Mapping) for message in value):
        said = [message for message in value if message.get("role") == "assistant"] or value
        return plain_text(said[-1:])
    raise InvalidInputError(f"a completion must be text or chat messages, but is {type(value).__name__}")


def _correct(value: Any) -> float | None:
    try:
        mark = _TRUTH[value.lower()] if isinstance(value, str) and value.lower() in _TRUTH else number(value)
    except ValueError:
        mark = float("inf")
    if mark != mark:
        return None
    if mark == -1 or 0 <= mark <= 1:
        return max(mark, 0.0)
    raise InvalidInputError(
        f"correctness must be in [0, 1] or -1, but is {value!r}; --columns correct=NAME names another column"
    )


def _strings(value: Any) -> list[str]:
    """A value or a list of values as texts, without missing ones."""
    if isinstance(value, Mapping):
        raise InvalidInputError(f"answers and passages must be text or lists of text, but got {sorted(value)}")
    found = (id_text(item) for item in (value if isinstance(value, list | tuple) else [value]))
    return [text for text in found if text is not None]
