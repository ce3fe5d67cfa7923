"""Does the test set leak into the training set?"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from viprl.errors import InvalidInputError
from viprl.tasks.search.questions import Question

_WORD = re.compile(r"\w+", re.UNICODE)


@dataclass(frozen=True)
class Leak:
    """A test question and the training question that gives it away."""

    test_id: str
    train_id: str
    similarity: float


@dataclass(frozen=True)
class ContaminationReport:
    """What was found, each test question at most once per kind.

    Attributes:
        exact: the same question after lower-casing and dropping punctuation.
        near: share of common word n-grams (Jaccard) at or above the threshold, without the exact ones.
        shared_hops: multi-hop questions all of whose hops occur in training questions (MuSiQue's hop ids): solvable
            from training alone, though asked in new words.
        shared_ids: the same id on both sides.
    """

    n_train: int
    n_test: int
    threshold: float
    exact: tuple[Leak, ...]
    near: tuple[Leak, ...]
    shared_hops: tuple[Leak, ...]
    shared_ids: tuple[str, ...]

    @property
    def contaminated(self) -> frozenset[str]:
        """Ids of test questions to leave out of training or of the test."""
        leaks = (*self.exact, *self.near, *self.shared_hops)
        return frozenset(leak.test_id for leak in leaks) | frozenset(self.shared_ids)

    def summary(self) -> str:
        return (
            f"{len(self.contaminated)} of {self.n_test} test questions occur in {self.n_train} training questions: "
            f"{len(self.exact)} exact, {len(self.near)} near (n-gram overlap >= {self.threshold:g}), "
            f"{len(self.shared_hops)} by their hops, {len(self.shared_ids)} by id"
        )


def contamination(
    train: Sequence[Question], test: Sequence[Question], *, n: int = 3, threshold: float = 0.6
) -> ContaminationReport:
    """Compare every test question with all training questions; linear in the number of n-grams.

    Args:
        n: words of an n-gram; shorter questions count as one n-gram.
        threshold: Jaccard similarity of the two sets of n-grams, in (0, 1].
    """
    if n < 1 or not 0 < threshold <= 1:
        raise InvalidInputError(f"n >= 1 and 0 < threshold <= 1 must hold, but got (n={n}, threshold={threshold})")
    by_text: dict[str, str] = {}
    by_gram: dict[tuple[str, ...], list[int]] = defaultdict(list)
    train_grams: list[frozenset[tuple[str, ...]]] = []
    hop_owner: dict[str, str] = {}
    for row, question in enumerate(train):
        tokens = _tokens(question.question)
        by_text.setdefault(" ".join(tokens), question.id)
        grams = _grams(tokens, n)
        train_grams.append(grams)
        for gram in grams:
            by_gram[gram].append(row)
        for hop in question.hops:
            hop_owner.setdefault(hop, question.id)
    exact, near, hops = [], [], []
    for question in test:
        tokens = _tokens(question.question)
        twin = by_text.get(" ".join(tokens))
        if twin is not None:
            exact.append(Leak(question.id, twin, 1.0))
        else:
            best, similarity = _closest(_grams(tokens, n), train_grams, by_gram)
            if best is not None and similarity >= threshold:
                near.append(Leak(question.id, train[best].id, similarity))
        owners = [hop_owner.get(hop) for hop in question.hops]
        if owners and all(owner is not None for owner in owners):
            hops.append(Leak(question.id, str(owners[-1]), 1.0))
    ids = {question.id for question in train}
    shared = tuple(question.id for question in test if question.id in ids)
    return ContaminationReport(len(train), len(test), threshold, tuple(exact), tuple(near), tuple(hops), shared)


def _closest(
    grams: frozenset[tuple[str, ...]],
    train_grams: Sequence[frozenset[tuple[str, ...]]],
    by_gram: dict[tuple[str, ...], list[int]],
) -> tuple[int | None, float]:
    common: dict[int, int] = defaultdict(int)
    for gram in grams:
        for row in by_gram.get(gram, ()):
            common[row] += 1
    best, similarity = None, 0.0
    for row, count in common.items():
        value = count / (len(grams) + len(train_grams[row]) - count)
        if value > similarity:
            best, similarity = row, value
    return best, similarity


def _tokens(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _grams(tokens: Sequence[str], n: int) -> frozenset[tuple[str, ...]]:
    if len(tokens) <= n:
        return frozenset({tuple(tokens)})
    return frozenset(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))
