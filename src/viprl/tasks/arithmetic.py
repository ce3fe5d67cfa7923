"""Additions of up to three digits, one character a token: a task that a model of 0.8 million parameters learns.

Difficulty is heterogeneous in two ways. Sums have one to three digits in each term, and the warm start imitates a
teacher who errs more often the larger the last digit of the second term is (from 5 % for 0 to 90 % for 9), so that
the success rates of the warm-started model spread over (0, 1) and a prompt's text says something about its own.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from viprl.errors import InvalidInputError
from viprl.tasks.additions import Addition, draw_additions
from viprl.tasks.base import Task, check_positive, completion_text
from viprl.tasks.warm_start import WarmStart, cached_warm_start

if TYPE_CHECKING:
    from datasets import Dataset


class ArithmeticTask(Task):
    """Procedural additions; the answer must match exactly.

    Args:
        train_size: training prompts.
        too_hard: share of the training prompts that are sums of five-digit numbers, which the model never saw and does
            not learn: real data sets hold many prompts beyond the model. Their length gives them away.
        test_size: held-out prompts, of up to three digits; an addition is held out by a hash of its text, so the two
            never overlap.
        seed: which additions are drawn.
        warm_start: settings of ``WarmStart`` to change, such as ``{"clean_steps": 200}``.

    Raises:
        InvalidInputError: a size is not positive, a share outside [0, 1), or ``warm_start`` has an unknown setting.
    """

    name = "arithmetic"
    max_completion_length = 6

    def __init__(
        self,
        *,
        train_size: int = 512,
        test_size: int = 256,
        too_hard: float = 0.0,
        seed: int = 0,
        warm_start: Mapping[str, Any] | None = None,
    ) -> None:
        check_positive(train_size=train_size, test_size=test_size)
        if not 0 <= too_hard < 1:
            raise InvalidInputError(f"0 <= too_hard < 1 must hold, but got {too_hard}")
        self.train_size, self.test_size, self.seed, self.too_hard = train_size, test_size, seed, too_hard
        try:
            self.recipe = WarmStart(**(warm_start or {}))
        except TypeError as error:
            names = ", ".join(field.name for field in dataclasses.fields(WarmStart))
            raise InvalidInputError(f"`warm_start` takes the settings {names}, but got {warm_start}") from error

    def train_dataset(self) -> Dataset:
        hard = round(self.train_size * self.too_hard)
        additions = draw_additions(self.train_size - hard, seed=self.seed, held_out=False)
        draws = random.Random(f"too hard/{self.seed}")
        beyond: set[Addition] = set()
        while len(beyond) < hard:
            beyond.add((draws.randrange(10_000, 100_000), draws.randrange(10_000, 100_000)))
        mixed = additions + sorted(beyond)
        draws.shuffle(mixed)
        return _dataset(mixed if hard else additions)

    def test_dataset(self) -> Dataset:
        return _dataset(draw_additions(self.test_size, seed=self.seed, held_out=True))

    def reward(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """1.0 where the completion is the sum's digits and nothing else."""
        answers = columns["answer"]
        return [float(completion_text(c) == a) for c, a in zip(completions, answers, strict=True)]

    def build_model(self, cache_dir: Path | None = None, *, seed: int = 0, log: Any = None) -> tuple[Any, Any]:
        """(model, tokenizer) after the supervised warm start, which is trained once and cached."""
        return cached_warm_start(cache_dir, recipe=self.recipe, log=log)


def _dataset(additions: list[Addition]) -> Dataset:
    from datasets import Dataset

    return Dataset.from_dict(
        {
            "prompt": [f"{a}+{b}=" for a, b in additions],
            "prompt_id": [f"{a}+{b}" for a, b in additions],
            "answer": [str(a + b) for a, b in additions],
        }
    )
