"""Problems with a final answer, graded by math-verify: local files or a data set of the hub."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from viprl.errors import ConfigurationError
from viprl.evaluation.math_grader import MathGrader, final_answer
from viprl.prompts.ids import content_hash
from viprl.tasks.base import Task, check_positive, completion_text

if TYPE_CHECKING:
    from datasets import Dataset

INSTRUCTION = 'Solve step by step. The last line must be "Answer: <answer>".'
_LOADERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
_WORKED_ANSWER = re.compile(r"####\s*(.+?)\s*$")  # GSM8K keeps the answer behind the worked solution


class MathTask(Task):
    """Mathematics with a final answer; 1 where math-verify finds the answers equal, else 0.

    Args:
        train, test: a .jsonl, .json, .parquet or .csv file, or a hub id. Without ``test``, ``test_size`` problems are
            split off the training set (by a hash of the problem, so the split never moves).
        train_split, test_split, subset: for hub ids.
        problem, answer, prompt_id: column names; without the id column the id is a hash of the problem.
        train_size, test_size: keep so many problems; all of them by default.
        instruction: appended to the problem; must ask for a boxed answer or a last line "Answer: ...".
        chat: prompts as chat messages (False: plain text, for base models).
        grading_seconds: longest time for one answer; one that takes longer is wrong.
        max_completion_length: tokens for an answer.

    Raises:
        ConfigurationError: a file or column is missing, or a problem has no answer.
    """

    name = "math"

    def __init__(
        self,
        *,
        train: str,
        test: str | None = None,
        train_split: str = "train",
        test_split: str = "test",
        subset: str | None = None,
        problem: str = "problem",
        answer: str = "answer",
        prompt_id: str | None = None,
        train_size: int | None = None,
        test_size: int | None = None,
        instruction: str = INSTRUCTION,
        chat: bool = True,
        grading_seconds: float = 5.0,
        max_completion_length: int = 1024,
    ) -> None:
        check_positive(max_completion_length=max_completion_length)
        for name, size in (("train_size", train_size), ("test_size", test_size)):
            if size is not None:
                check_positive(**{name: size})
        self.chat, self.instruction, self.max_completion_length = chat, instruction, max_completion_length
        self._columns = (problem, answer, prompt_id)
        rows = self._rows(train, train_split, subset)
        if test is None:
            rows, held_out = _split(rows, test_size or max(1, len(rows) // 10))
        else:
            trained = {row["problem"] for row in rows}
            found = self._rows(test, test_split, subset)
            held_out = [row for row in found if row["problem"] not in trained][:test_size]
            if found and not held_out:
                raise ConfigurationError(
                    f"held-out problems must not be among those of training, but all {len(found)} of test={test!r} are "
                    f"in train={train!r}; leave `test` out and a tenth of `train` is held out"
                )
        self._train, self._test = rows[:train_size], held_out
        if not self._train or not self._test:
            raise ConfigurationError(
                "training and held-out problems must both be non-empty, but got "
                f"{len(self._train)} and {len(self._test)}"
            )
        self.grader = MathGrader(seconds=grading_seconds)

    def train_dataset(self) -> Dataset:
        return self._dataset(self._train)

    def test_dataset(self) -> Dataset:
        return self._dataset(self._test)

    def reward(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """1 or 0 for each completion; None where the gold answer itself cannot be read."""
        answers = [final_answer(completion_text(completion)) for completion in completions]
        return self.grader.grade(answers, columns["answer"])

    def texts(self, dataset: Dataset) -> list[str]:
        """The problems without the instruction, which all prompts share."""
        return [text.removesuffix(f"\n\n{self.instruction}") for text in super().texts(dataset)]

    def _dataset(self, rows: list[dict[str, str]]) -> Dataset:
        from datasets import Dataset

        texts = [f"{row['problem']}\n\n{self.instruction}" if self.instruction else row["problem"] for row in rows]
        return Dataset.from_dict(
            {
                "prompt": [[{"role": "user", "content": text}] for text in texts] if self.chat else texts,
                "prompt_id": [row["prompt_id"] for row in rows],
                "answer": [row["answer"] for row in rows],
            }
        )

    def _rows(self, source: str, split: str, subset: str | None) -> list[dict[str, str]]:
        """Rows with problem, answer and prompt_id; a repeated prompt_id keeps its first row."""
        data = _load(source, split, subset)
        problem, answer, prompt_id = self._columns
        for name, column in (("problem", problem), ("answer", answer), ("prompt_id", prompt_id)):
            if column is not None and column not in data.column_names:
                raise ConfigurationError(
                    f"`{name}` must be a column of {source!r} ({', '.join(data.column_names)}), but got {column!r}"
                )
        rows: dict[str, dict[str, str]] = {}
        for row in data:
            text, gold = str(row[problem]).strip(), _gold(row[answer])
            if not text or not gold:
                raise ConfigurationError(f"every problem of {source!r} needs a text and an answer, but got {row}")
            key = content_hash(text) if prompt_id is None else str(row[prompt_id])
            rows.setdefault(key, {"problem": text, "answer": gold, "prompt_id": key})
        return list(rows.values())


def _gold(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    worked = _WORKED_ANSWER.search(text)
    return worked.group(1) if worked else text


def _split(rows: list[dict[str, str]], test_size: int) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """(training, held out): the held-out rows are those whose problem's hash is smallest."""
    if test_size >= len(rows):
        raise ConfigurationError(f"test_size < problems must hold, but got ({test_size}, {len(rows)})")
    order = sorted(rows, key=lambda row: content_hash(f"held out: {row['problem']}"))
    held_out = {row["prompt_id"] for row in order[:test_size]}
    return [r for r in rows if r["prompt_id"] not in held_out], [r for r in rows if r["prompt_id"] in held_out]


def _load(source: str, split: str, subset: str | None) -> Any:
    from datasets import load_dataset

    path = Path(source).expanduser()
    if path.suffix in _LOADERS:
        if not path.exists():
            raise ConfigurationError(f"a data file must exist, but got {source!r}")
        return load_dataset(_LOADERS[path.suffix], data_files=str(path), split="train")
    try:
        return load_dataset(source, subset, split=split)
    except Exception as error:  # the hub client raises many kinds; the cause stays attached
        kinds = ", ".join(_LOADERS)
        raise ConfigurationError(
            f"a data set must be a file ({kinds}) or a hub id that can be loaded, but got {source!r}: {error}"
        ) from error
