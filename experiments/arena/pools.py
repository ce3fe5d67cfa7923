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
    test = _texts(draw_additions(4 * HELD_OUT, seed=0, held_out=True))[:HELD_OUT]
    dead = 0.6 if name in ("text", "history") else 0.4 if name == "mixed" else 0.0
    hopeless = _dead(int(SIZE * dead), name, {p for p, _ in real})
    if name == "mixed":
        solved = _rated(SOLVED, 0, rate, int(SIZE * 0.3))
        known = set(solved)
        chosen = solved + [x for x in real if x not in known][: SIZE - len(solved) - len(hopeless)]
    elif name == "frontier":  # most fail until the others are learnt; so do the held-out ones
        late = _rated(LATE, 1, rate, int(SIZE * 0.75))
        chosen = late + _rated(EARLY, 0, rate, SIZE - len(late))
        late = _rated(LATE, 1, rate, HELD_OUT * 3 // 4, held_out=True)
        test = late + _rated(EARLY, 0, rate, HELD_OUT - len(late), held_out=True)
    else:
        chosen = real[: SIZE - len(hopeless)]
    chosen = chosen + hopeless
    random.Random("order").shuffle(chosen)
    prompts, answers = [p for p, _ in chosen], [a for _, a in chosen]
    difficulty = 1.0 - rate(prompts, [a if a != NEVER else "0" for a in answers])
    difficulty[[a == NEVER for a in answers]] = 1.0
    return Pool(prompts, answers, difficulty, [p for p, _ in test], [a for _, a in test])


@dataclass(frozen=True)
class Kind:
    """Additions whose success rate at the warm start lies in a range; ``likely`` tells which are worth rating."""

    drawn: int
    drawn_held_out: int
    likely: Callable[[int, int], bool]
    low: float
    high: float


SOLVED = Kind(30_000, 0, lambda a, b: b % 10 == 0, 0.9, 1.0)
EARLY = Kind(4_096, 1_024, lambda a, b: True, 0.1, 0.9)
LATE = Kind(250_000, 50_000, lambda a, b: b % 10 >= 6 and (a + b) % 10 == 9, 0.0, 0.02)


def _rated(kind: Kind, seed: int, rate: Rate, count: int, *, held_out: bool = False) -> list[tuple[str, str]]:
    """The first ``count`` additions of a kind."""
    drawn = draw_additions(kind.drawn_held_out if held_out else kind.drawn, seed=seed, held_out=held_out)
    texts = _texts([pair for pair in drawn if kind.likely(*pair)])
    rates = rate([p for p, _ in texts], [a for _, a in texts])
    found = [x for x, r in zip(texts, rates, strict=True) if kind.low <= r <= kind.high]
    if len(found) < count:
        raise RuntimeError(f"{count} additions with a success rate in [{kind.low}, {kind.high}] were wanted, but only "
                           f"{len(found)} of {len(texts)} have one under this warm start")  # fmt: skip
    return found[:count]


NAMES = ("live", "text", "history", "mixed", "frontier")


def _texts(additions: list[tuple[int, int]]) -> list[tuple[str, str]]:
    return [(f"{a}+{b}=", str(a + b)) for a, b in additions]


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
