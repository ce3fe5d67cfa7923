"""Any data set of reasoning-gym, graded by its own procedural verifier."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from viprl.errors import ConfigurationError, InvalidInputError, MissingDependencyError
from viprl.tasks.base import Task, check_positive, completion_text

if TYPE_CHECKING:
    from datasets import Dataset

INSTRUCTION = "Give only the final answer inside <answer> and </answer>."
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_NUMBER = re.compile(r"(?<![\d.])-?\d+(?:\.\d+)?")
TEST_SEED_OFFSET = 500_000_003


class ReasoningGymTask(Task):
    """Prompts of one reasoning-gym data set.

    Args:
        dataset: its name, such as ``basic_arithmetic``.
        train_size, test_size: number of prompts; a held-out question that also occurs in training is left out.
        seed: seed of the generator (the held-out prompts use another).
        config: the data set's own settings, such as ``{"max_terms": 2}``.
        binary: 1 for a full score and 0 otherwise; False keeps the verifier's partial scores (real rewards).
        instruction: appended to the question; must say how to mark the answer.
        answer: "tags" takes the last <answer>...</answer>; "text" the whole completion, stripped; "number" its last
            number (for models too small to keep to a format).
        max_completion_length: tokens for an answer.

    Raises:
        ConfigurationError: unknown data set, or settings that it refuses.
    """

    name = "reasoning_gym"
    chat = True

    def __init__(
        self,
        *,
        dataset: str,
        train_size: int = 512,
        test_size: int = 128,
        seed: int = 0,
        config: Mapping[str, Any] | None = None,
        binary: bool = True,
        instruction: str = INSTRUCTION,
        answer: str = "tags",
        max_completion_length: int = 256,
    ) -> None:
        check_positive(train_size=train_size, test_size=test_size, max_completion_length=max_completion_length)
        if answer not in ("tags", "text", "number"):
            raise InvalidInputError(f"`answer` must be 'tags', 'text' or 'number', but got {answer!r}")
        self.dataset, self.seed, self.config = dataset, seed, dict(config or {})
        self.binary, self.instruction, self.answer = binary, instruction, answer
        self.max_completion_length = max_completion_length
        self._train = _create(dataset, train_size, seed, self.config)
        self._test = _create(dataset, test_size, seed + TEST_SEED_OFFSET, self.config)
        self._entries: dict[str, dict[str, Any]] = {}

    def train_dataset(self) -> Dataset:
        return self._build("train", self._train, skip=frozenset())

    def test_dataset(self) -> Dataset:
        trained = frozenset(self._train[i]["question"] for i in range(len(self._train)))
        return self._build("test", self._test, skip=trained)

    def reward(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """The verifier's score of each answer; 0 without an answer, None where the verifier itself fails."""
        rewards: list[float | None] = []
        for completion, prompt_id in zip(completions, columns["prompt_id"], strict=True):
            split, entry = self._entry(prompt_id)
            rewards.append(self._score(split, extract_answer(completion_text(completion), self.answer), entry))
        return rewards

    def _score(self, split: Any, answer: str | None, entry: Mapping[str, Any]) -> float | None:
        if answer is None:
            return 0.0
        try:
            score = float(split.score_answer(answer, entry))
        except Exception:  # some verifiers raise on answers they cannot parse: the answer is then wrong
            score = 0.0 if answer != entry["answer"] else math.nan
        if math.isnan(score):  # the verifier fails on its own answer: nothing is known about this rollout
            return None
        return float(score >= 1.0 - 1e-9) if self.binary else score

    def _build(self, part: str, split: Any, *, skip: frozenset[str]) -> Dataset:
        from datasets import Dataset

        rows: dict[str, list[Any]] = {"prompt": [], "prompt_id": [], "answer": []}
        seen: set[str] = set()
        for index in range(len(split)):
            entry = split[index]
            if entry["question"] in skip or entry["question"] in seen:
                continue
            seen.add(entry["question"])
            text = f"{entry['question']}\n{self.instruction}" if self.instruction else entry["question"]
            rows["prompt"].append([{"role": "user", "content": text}])
            rows["prompt_id"].append(f"{self.dataset}/{part}/{self.seed}/{index}")
            rows["answer"].append(str(entry["answer"]))
        if not rows["prompt"]:
            raise ConfigurationError(f"reasoning-gym's {self.dataset!r} gave no {part} prompt that is not in training")
        return Dataset.from_dict(rows)

    def _entry(self, prompt_id: str) -> tuple[Any, dict[str, Any]]:
        """The generator of a prompt and its entry (procedural: the same on every process)."""
        _, part, _, index = str(prompt_id).rsplit("/", 3)
        split = self._train if part == "train" else self._test
        if prompt_id not in self._entries:
            self._entries[prompt_id] = split[int(index)]
        return split, self._entries[prompt_id]


def extract_answer(text: str, kind: str = "tags") -> str | None:
    """The last <answer>...</answer> of a text, or the whole text, or its last number; None where there is none."""
    if kind == "text":
        return text.strip() or None
    found = (_NUMBER if kind == "number" else _ANSWER).findall(text)
    return found[-1].strip() if found else None


def _create(name: str, size: int, seed: int, config: Mapping[str, Any]) -> Any:
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise MissingDependencyError.of("a reasoning_gym task", "reasoning-gym") from error
    if name not in DATASETS:
        close = difflib.get_close_matches(name, DATASETS, n=3)
        hint = f"; nearest: {', '.join(close)}" if close else ""
        raise ConfigurationError(f"`dataset` must be one of reasoning-gym's {len(DATASETS)}, but got {name!r}{hint}")
    try:
        return reasoning_gym.create_dataset(name, size=size, seed=seed, **config)
    except (TypeError, AssertionError, ValueError) as error:
        raise ConfigurationError(f"reasoning-gym's {name!r} refused config={dict(config)}: {error}") from error
