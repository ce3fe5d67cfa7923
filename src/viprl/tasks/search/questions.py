"""Questions with gold answers: MuSiQue, Bamboogle, HotpotQA, from local files or the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from viprl.errors import InvalidInputError, MissingDependencyError
from viprl.tasks.search.corpus import hotpot_context, read_records, record_passages, unique_passages
from viprl.tasks.search.passages import Passage, passage_id


@dataclass(frozen=True)
class Question:
    """One question.

    Attributes:
        id: the data set's own, else its name and row.
        answers: accepted answers, the main one first, then aliases; no repeats.
        supporting: ids of the passages that the answer rests on (content hashes, see `passage_id`); may be empty.
        hops: ids of the single-hop questions it is made of (MuSiQue), for contamination checks.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    supporting: tuple[str, ...] = ()
    hops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.question.strip() or not self.answers:
            raise InvalidInputError(f"a question needs text and an answer, but {self.id!r} has {self.answers!r}")


ID_NAMES = ("id", "_id", "prompt_id")
# where each data set usually lives on the hub: (repository, configuration)
HUB: dict[str, tuple[str, str | None]] = {
    "musique": ("dgslibisey/MuSiQue", None),
    "bamboogle": ("chiayewken/bamboogle", None),
    "hotpotqa": ("hotpotqa/hotpot_qa", "distractor"),
}


def load_questions(
    name: str, path: str | Path | None = None, *, split: str = "test", limit: int | None = None
) -> list[Question]:
    """Questions of a data set, in its order.

    Args:
        name: "musique", "bamboogle", "hotpotqa", or any other word for a file of (id, question, answers).
        path: a JSONL, JSON or parquet file; or a hub id; None = the data set's usual home on the hub.
        split: of the hub's data set ("train", "validation", "test"); local files are one split.
        limit: the first so many.

    Raises:
        InvalidInputError: no such file, a record without question or answer, or repeated ids.
    """
    questions: list[Question] = []
    seen: set[str] = set()
    for row, record in enumerate(_records(name, path, split)):
        if limit is not None and len(questions) >= limit:
            break
        if record.get("answerable") is False:  # MuSiQue-Full's second halves have no answer
            continue
        question = parse_question(record, default_id=f"{name}_{row:06d}")
        if question.id in seen:
            raise InvalidInputError(f"question ids must be unique, but {question.id!r} is repeated in {path or name}")
        seen.add(question.id)
        questions.append(question)
    if not questions:
        raise InvalidInputError(f"a data set must hold at least one question, but {path or name} has none")
    return questions


def question_passages(path: str | Path) -> list[Passage]:
    """The paragraphs that a file's questions carry, without repeats: the default corpus of MuSiQue and HotpotQA."""
    return unique_passages(p for record in read_records(path) for p in record_passages(record))


def parse_question(record: Mapping[str, Any], *, default_id: str = "") -> Question:
    """A question from a record of MuSiQue, Bamboogle, HotpotQA, FlashRAG, or plain (id, question, answers)."""
    text = next((record[key] for key in ("question", "Question", "query") if record.get(key)), None)
    if not isinstance(text, str):
        raise InvalidInputError(f"a record must hold a question, but its keys are {sorted(map(str, record))}")
    answers: list[str] = []
    for key in ("answer", "Answer", "answers", "golden_answers", "answer_aliases", "aliases"):
        value = record.get(key)
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            answers.append(str(value))
        elif isinstance(value, Iterable) and not isinstance(value, str | Mapping):
            answers.extend(str(item) for item in value)
    identifier = next((str(record[k]) for k in ID_NAMES if record.get(k) not in (None, "")), default_id)
    unique = tuple(dict.fromkeys(answer.strip() for answer in answers if answer.strip()))
    hops = tuple(str(step["id"]) for step in record.get("question_decomposition") or () if "id" in step)
    return Question(identifier, text.strip(), unique, _supporting(record), hops)


def _supporting(record: Mapping[str, Any]) -> tuple[str, ...]:
    if isinstance(record.get("supporting"), list | tuple):
        return tuple(map(str, record["supporting"]))
    if record.get("paragraphs"):
        marked = [p for p in record["paragraphs"] if p.get("is_supporting")]
        return tuple(
            dict.fromkeys(passage_id(str(p.get("title", "")), str(p.get("paragraph_text", ""))) for p in marked)
        )
    facts = record.get("supporting_facts")
    if facts is not None and record.get("context") is not None:
        titles = set(facts["title"]) if isinstance(facts, Mapping) else {fact[0] for fact in facts}
        return tuple(
            passage_id(title, "".join(sentences).strip())
            for title, sentences in hotpot_context(record["context"])
            if title in titles
        )
    return ()


def _records(name: str, path: str | Path | None, split: str) -> Iterable[Mapping[str, Any]]:
    if path is not None and Path(path).is_file():
        return read_records(path)
    if path is not None and (Path(path).suffix or str(path).startswith((".", "/", "~"))):
        raise InvalidInputError(f"a data set must be a file or a hub id, but {str(path)!r} does not exist")
    repository, configuration = (str(path), None) if path is not None else HUB.get(name, (name, None))
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise MissingDependencyError.of("a data set of the hub", "datasets") from error
    rows: Iterable[Mapping[str, Any]] = load_dataset(repository, configuration, split=split)
    return rows
