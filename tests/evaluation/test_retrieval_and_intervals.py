"""Retrieval measures by hand; intervals by their defining equation and by coverage."""

from __future__ import annotations

import numpy as np
import pytest

from viprl.errors import InvalidInputError
from viprl.evaluation import (
    bootstrap_interval,
    paired_bootstrap_interval,
    retrieval_f1_at_k,
    retrieval_precision_at_k,
    retrieval_recall_at_k,
    wilson_interval,
)


def test_retrieval_at_five():
    retrieved, relevant = ["a", "b", "c", "d", "e", "f"], {"a", "d", "f", "z"}
    assert retrieval_precision_at_k(retrieved, relevant, 5) == pytest.approx(2 / 5)
    assert retrieval_recall_at_k(retrieved, relevant, 5) == pytest.approx(2 / 4)
    p, r = 2 / 5, 2 / 4
    assert retrieval_f1_at_k(retrieved, relevant, 5) == pytest.approx(2 * p * r / (p + r))


def test_short_repeated_and_empty_lists():
    assert retrieval_precision_at_k(["a"], {"a"}, 5) == pytest.approx(1 / 5)
    assert retrieval_precision_at_k(["a", "a", "b"], {"a"}, 3) == pytest.approx(1 / 3)
    assert retrieval_recall_at_k([], {"a"}, 5) == 0.0
    assert retrieval_f1_at_k([], {"a"}, 5) == 0.0


@pytest.mark.parametrize(("relevant", "k"), [(set(), 5), ({"a"}, 0), ({"a"}, 1.5)])
def test_retrieval_refuses(relevant, k):
    for measure in (retrieval_precision_at_k, retrieval_recall_at_k, retrieval_f1_at_k):
        with pytest.raises(InvalidInputError):
            measure(["a"], relevant, k)


@pytest.mark.parametrize(("k", "n"), [(3, 10), (0, 10), (10, 10), (1, 1), (57, 200)])
def test_wilson_limits_solve_the_score_equation(k, n):
    interval, z = wilson_interval(k, n), 1.959963984540054
    for limit in (interval.low, interval.high):
        if 0 < limit < 1:
            assert abs(k / n - limit) == pytest.approx(z * np.sqrt(limit * (1 - limit) / n), rel=1e-9)
    assert 0 <= interval.low <= k / n <= interval.high <= 1


def test_wilson_refuses():
    for arguments in ((3, 2), (-1, 2), (0, 0)):
        with pytest.raises(InvalidInputError, match="must hold"):
            wilson_interval(*arguments)
    with pytest.raises(InvalidInputError, match="level"):
        wilson_interval(1, 2, level=1.0)


def test_bootstrap_covers_the_mean_about_as_often_as_it_says():
    rng, covered = np.random.default_rng(0), 0
    for trial in range(300):
        interval = bootstrap_interval(rng.normal(1.0, 2.0, 60), resamples=500, seed=trial)
        covered += interval.low <= 1.0 <= interval.high
    assert 0.89 <= covered / 300 <= 0.98


def test_paired_bootstrap_sees_a_small_constant_gain_under_large_shared_noise():
    noise = np.random.default_rng(1).normal(0, 10, 100)
    interval = paired_bootstrap_interval(noise + 0.5, noise)
    assert interval.excludes(0.0) and interval.estimate == pytest.approx(0.5)
    same = paired_bootstrap_interval(noise, noise)
    assert not same.excludes(0.0)
    with pytest.raises(InvalidInputError, match="same problems"):
        paired_bootstrap_interval([1.0], [1.0, 2.0])


def test_bootstrap_is_deterministic_by_seed_and_refuses_nonsense():
    values = np.arange(50.0)
    assert bootstrap_interval(values, seed=3) == bootstrap_interval(values, seed=3)
    for bad in ([], [np.nan], [[1.0]]):
        with pytest.raises(InvalidInputError):
            bootstrap_interval(bad)
