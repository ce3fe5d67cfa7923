"""Additions of up to three digits, one character a token: a task that a model of 0.8 million parameters learns.

Difficulty is heterogeneous in two ways. Sums have one to three digits in each term, and the warm start imitates a
teacher who errs more often the larger the last digit of the second term is (from 5 % for 0 to 90 % for 9), so that
the success rates of the warm-started model spread over (0, 1) and a prompt's text says something about its own.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from viprl.errors import InvalidInputError
from viprl.tasks.base import Task, check_positive, completion_text

if TYPE_CHECKING:
    from datasets import Dataset

Addition = tuple[int, int]

DIGITS = ((1, 2), (2, 2), (2, 3), (3, 3))  # digits of the two terms; drawn with equal shares
HELD_OUT_TENTHS = 1  # one addition in ten is held out: neither trained on nor imitated in the warm start


class ArithmeticTask(Task):
    """Procedural additions; the answer must match exactly.

    Args:
        train_size: training prompts.
        test_size: held-out prompts; an addition is held out by a hash of its text, so the two never overlap.
        seed: which additions are drawn.

    Raises:
        InvalidInputError: a size is not positive.
    """

    name = "arithmetic"
    max_completion_length = 6

    def __init__(self, *, train_size: int = 512, test_size: int = 256, seed: int = 0) -> None:
        check_positive(train_size=train_size, test_size=test_size)
        self.train_size, self.test_size, self.seed = train_size, test_size, seed

    def train_dataset(self) -> Dataset:
        return _dataset(draw_additions(self.train_size, seed=self.seed, held_out=False))

    def test_dataset(self) -> Dataset:
        return _dataset(draw_additions(self.test_size, seed=self.seed, held_out=True))

    def reward(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """1.0 where the completion is the sum's digits and nothing else."""
        answers = columns["answer"]
        return [float(completion_text(c) == a) for c, a in zip(completions, answers, strict=True)]

    def build_model(self, cache_dir: Path | None = None, *, seed: int = 0, log: Any = None) -> tuple[Any, Any]:
        from viprl.tasks.warm_start import cached_warm_start

        return cached_warm_start(cache_dir, seed=seed, log=log)


def is_held_out(addition: Addition) -> bool:
    """Whether an addition belongs to the held-out tenth, from a hash of its text."""
    digest = hashlib.sha256(f"{addition[0]}+{addition[1]}".encode()).digest()
    return digest[0] * 10 // 256 < HELD_OUT_TENTHS


def draw_additions(size: int, *, seed: int, held_out: bool) -> list[Addition]:
    """``size`` different additions in random order, all held out or none of them.

    Raises:
        InvalidInputError: there are not that many.
    """
    limit = 50_000 if held_out else 500_000
    if size > limit:
        raise InvalidInputError(f"at most {limit} additions can be drawn, but got {size}")
    rng = random.Random(f"{seed}/{held_out}")
    seen: dict[Addition, None] = {}
    while len(seen) < size:
        digits = DIGITS[rng.randrange(len(DIGITS))]
        a, b = (rng.randrange(0 if d == 1 else 10 ** (d - 1), 10**d) for d in digits)
        if is_held_out((a, b)) == held_out:
            seen[(a, b)] = None
    return list(seen)


def _dataset(additions: list[Addition]) -> Dataset:
    from datasets import Dataset

    return Dataset.from_dict(
        {
            "prompt": [f"{a}+{b}=" for a, b in additions],
            "prompt_id": [f"{a}+{b}" for a, b in additions],
            "answer": [str(a + b) for a, b in additions],
        }
    )
