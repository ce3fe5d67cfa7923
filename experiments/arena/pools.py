"""The arena's five pools: 1,024 training prompts each, and 256 held-out ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from viprl.tasks.additions import draw_additions

SIZE, HELD_OUT = 1024, 256
NEVER = "="  # no completion equals it

Rate = Callable[[list[str], list[str]], np.ndarray]  # success probabilities of (prompts, answers) at the warm start


@dataclass(frozen=True)
class Pool:
    """Prompts with their answers; ``difficulty`` in [0, 1] is what a label would say (for rules that need one)."""

    prompts: list[str]
    answers: list[str]
    difficulty: np.ndarray
    test_prompts: list[str]
    test_answers: list[str]


def build(name: str, rate: Rate) -> Pool:
    """One of ``NAMES``; the same for every seed of a run."""
    real = _texts(draw_additions(4 * SIZE, seed=0, held_out=False))
    test = _texts(draw_additions(4 * HELD_OUT, seed=0, held_out=True))
    dead = 0.6 if name in ("text", "history") else 0.4 if name == "mixed" else 0.0
    hopeless = _dead(int(SIZE * dead), name, {p for p, _ in real})
    rates = rate([p for p, _ in real], [a for _, a in real])
    if name == "mixed":
        solved = [x for x, r in zip(real, rates, strict=True) if r > 0.97][: int(SIZE * 0.3)]
        rest = [x for x, r in zip(real, rates, strict=True) if r <= 0.97][: SIZE - len(solved) - len(hopeless)]
        chosen = solved + rest
    elif name == "frontier":  # most are hopeless until the others are learnt
        late = [x for x in real if _last_digit(x) >= 6][: int(SIZE * 0.75)]
        chosen = late + [x for x in real if _last_digit(x) < 6][: SIZE - len(late)]
        test = [x for x in test if _last_digit(x) >= 6][: HELD_OUT * 3 // 4] + [x for x in test if _last_digit(x) < 6][
            : HELD_OUT // 4
        ]
    else:
        chosen = real[: SIZE - len(hopeless)]
    chosen = chosen + hopeless
    random.Random("order").shuffle(chosen)
    prompts, answers = [p for p, _ in chosen], [a for _, a in chosen]
    difficulty = 1.0 - rate(prompts, [a if a != NEVER else "0" for a in answers])
    difficulty[[a == NEVER for a in answers]] = 1.0
    test = test[:HELD_OUT]
    return Pool(prompts, answers, difficulty, [p for p, _ in test], [a for _, a in test])


NAMES = ("live", "text", "history", "mixed", "frontier")


def _texts(additions: list[tuple[int, int]]) -> list[tuple[str, str]]:
    return [(f"{a}+{b}=", str(a + b)) for a, b in additions]


def _last_digit(pair: tuple[str, str]) -> int:
    return int(pair[0][-2])


def _dead(count: int, name: str, taken: set[str]) -> list[tuple[str, str]]:
    """Sums of three numbers (their text tells) or additions with a wrong label (only history tells); half and half."""
    rng, found = random.Random(7), []
    while len(found) < count:
        tells = name == "text" or (name == "mixed" and len(found) % 2 == 0)
        low, terms = (100, 3) if tells else (10, 2)
        text = "+".join(str(rng.randrange(low, 1000)) for _ in range(terms)) + "="
        if text not in taken:
            taken.add(text)
            found.append((text, NEVER))
    return found
