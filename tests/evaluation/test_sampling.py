"""Pass@k, Mean@k and Maj@k against enumeration of all subsets and the published estimator."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viprl.errors import InvalidInputError
from viprl.evaluation import maj_at_k, mean_at_k, pass_at_k


def pass_by_enumeration(n: int, c: int, k: int) -> Fraction:
    marks = [1] * c + [0] * (n - c)
    subsets = list(itertools.combinations(marks, k))
    return Fraction(sum(any(s) for s in subsets), len(subsets))


def maj_by_enumeration(answers, gold, k) -> Fraction:
    total, count = Fraction(0), 0
    for subset in itertools.combinations(answers, k):
        votes = Counter(a for a in subset if a not in (None, ""))
        count += 1
        if votes:
            top = max(votes.values())
            leaders = [a for a, v in votes.items() if v == top]
            total += Fraction(sum(a == gold for a in leaders), len(leaders))
    return total / count


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_one(n):
    for c in range(n + 1):
        for k in range(1, n + 1):
            assert pass_at_k(n, c, k) == pytest.approx(float(pass_by_enumeration(n, c, k)), abs=1e-12)


@given(st.integers(1, 300), st.data())
def test_pass_at_k_equals_the_published_estimator(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    published = 1.0 if n - c < k else 1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1))
    assert pass_at_k(n, c, k) == pytest.approx(published, abs=1e-9)


def test_pass_at_k_is_unbiased():
    p, n, k = 0.2, 12, 4
    counts = np.random.default_rng(0).binomial(n, p, size=200_000)
    assert np.mean(pass_at_k(np.full(len(counts), n), counts, k)) == pytest.approx(1 - (1 - p) ** k, abs=0.003)


def test_pass_at_k_of_arrays_and_scalars():
    assert pass_at_k([4, 8], [1, 8], 4).tolist() == [1.0, 1.0]
    assert pass_at_k(4, [0, 1], 1).tolist() == [0.0, 0.25]
    assert isinstance(pass_at_k(4, 1, 1), float)
    assert pass_at_k([], [], 3).shape == (0,)


@pytest.mark.parametrize(
    ("n", "c", "k", "rule"),
    [
        (4, 1, 5, "k <= n must hold"),
        ([8, 3], [1, 1], 4, "k <= n must hold"),
        (4, 5, 2, "c <= n must hold"),
        (4, -1, 2, "c >= 0 must hold"),
        (4, 1, 0, "k >= 1 must hold"),
        (4, 1.5, 2, "whole numbers"),
        (4, 1, 1.5, "k must be whole"),
    ],
)
def test_pass_at_k_refuses(n, c, k, rule):
    with pytest.raises(InvalidInputError, match=rule):
        pass_at_k(n, c, k)


@given(st.lists(st.sampled_from(["7", "8", "9", "", None]), min_size=1, max_size=8), st.data())
def test_maj_at_k_is_the_average_over_all_subsets(answers, data):
    k = data.draw(st.integers(1, len(answers)))
    assert maj_at_k(answers, "7", k) == pytest.approx(float(maj_by_enumeration(answers, "7", k)), abs=1e-9)


def test_ties_count_by_the_share_of_correct_leaders():
    assert maj_at_k(["1", "2"], "1", 2) == 0.5
    assert maj_at_k(["1", "1", "2", "2", "3", "3"], "3", 6) == pytest.approx(1 / 3)
    assert maj_at_k(["1", "1.0", "2", "2"], ["1", "1.0"], 4) == 0.0  # split votes lose, as a vote of strings does
    assert maj_at_k(["1", "1.0"], ["1", "1.0"], 2) == 1.0


def test_missing_answers_never_win():
    assert maj_at_k([None, None, "", "7"], "7", 4) == 1.0
    assert maj_at_k([None, ""], "7", 2) == 0.0
    assert maj_at_k(["7", None], "7", 1) == 0.5


def test_unicode_answers_vote_as_they_are():
    assert maj_at_k(["π", "π", "3,14"], "π", 3) == 1.0


def test_many_distinct_answers_use_seeded_draws_near_the_truth():
    answers = ["7"] * 20 + [str(100 + i) for i in range(44)]
    estimate = maj_at_k(answers, "7", 16, seed=1)
    assert estimate == maj_at_k(answers, "7", 16, seed=1)
    rng, hits = np.random.default_rng(5), []
    for _ in range(4000):
        votes = Counter(rng.permutation(answers)[:16].tolist())
        top = max(votes.values())
        leaders = [a for a, v in votes.items() if v == top]
        hits.append(("7" in leaders) / len(leaders))
    assert estimate == pytest.approx(np.mean(hits), abs=0.03)


def test_maj_refuses_more_voters_than_answers():
    with pytest.raises(InvalidInputError, match="k <= n must hold"):
        maj_at_k(["7"], "7", 2)


def test_mean_at_k_takes_the_first_k():
    assert mean_at_k([1, 0, 0, 1], 2) == 0.5
    assert mean_at_k([True, False, False], 3) == pytest.approx(1 / 3)
    with pytest.raises(InvalidInputError, match="k <= n must hold"):
        mean_at_k([1, 0], 3)
    with pytest.raises(InvalidInputError, match=r"\[0, 1\]"):
        mean_at_k([1, 2], 2)
    with pytest.raises(InvalidInputError, match="k <= n must hold"):
        mean_at_k([], 1)
