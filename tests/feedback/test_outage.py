"""Outages are kept out; bad luck, hard data and lasting collapses are not."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from viprl.feedback.outage import OutageDetector
from viprl.prediction.base import Prediction


def known(p: np.ndarray, strength: float = 30.0) -> Prediction:
    return Prediction.beta(p * strength + 0.1, (1 - p) * strength + 0.1)


def seasoned(**settings: int) -> OutageDetector:
    """A detector that has seen an ordinary step."""
    rng = np.random.default_rng(99)
    detector = OutageDetector(**settings)
    p, n = np.linspace(0.05, 0.95, 64), np.full(64, 8.0)
    assert not detector.update(known(p), rng.binomial(8, p).astype(float), n)
    return detector


def test_collapse_of_known_prompts_is_quarantined() -> None:
    p = np.linspace(0.05, 0.95, 64)
    n = np.full(64, 8.0)
    assert seasoned().update(known(p), np.zeros(64), n)


def test_half_an_outage_is_an_outage() -> None:
    rng = np.random.default_rng(0)
    p, n = np.full(64, 0.7), np.full(64, 8.0)
    k = rng.binomial(8, p).astype(float)
    k[:40] = 0
    assert seasoned().update(known(p), k, n)


@pytest.mark.parametrize("seed", range(20))
def test_ordinary_steps_pass(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = rng.beta(0.4, 0.5, 256)
    n = rng.integers(3, 20, 256)
    assert not seasoned().update(known(p), rng.binomial(n, p).astype(float), n.astype(float))


def test_cold_prompts_never_count() -> None:
    prediction = Prediction.beta(np.full(64, 20.0), np.full(64, 10.0), cold=np.ones(64, bool))
    assert not seasoned().update(prediction, np.zeros(64), np.full(64, 8.0))


def test_hard_prompts_may_all_fail() -> None:
    p = np.full(256, 0.05)
    assert not seasoned().update(known(p), np.zeros(256), np.full(256, 8.0))


def test_a_lasting_collapse_is_accepted() -> None:
    detector = seasoned(patience=5)
    args = (known(np.full(64, 0.6)), np.zeros(64), np.full(64, 8.0))
    assert [detector.update(*args) for _ in range(7)] == [True] * 5 + [False] * 2


def test_missing_groups_are_not_failures() -> None:
    n = np.zeros(64)
    assert not seasoned().update(known(np.full(64, 0.6)), np.zeros(64), n)


def test_a_predictor_that_is_always_wrong_goes_on_learning() -> None:
    detector = OutageDetector()
    args = (known(np.full(64, 0.6)), np.zeros(64), np.full(64, 8.0))
    assert [detector.update(*args) for _ in range(5)] == [False] * 5


def test_state_round_trips() -> None:
    detector, other = seasoned(), OutageDetector()
    other.load_state_dict(detector.state_dict())
    args = (known(np.full(64, 0.6)), np.zeros(64), np.full(64, 8.0))
    assert detector.update(*args) and other.update(*args)
    assert other.streak == 1


@pytest.mark.parametrize("rate", (0.05, 0.3, 0.9, 1.0))
def test_tail_is_the_binomial_one(rate: float) -> None:
    detector = OutageDetector(surprise=0.05, significance=1e-6)
    detector._past = np.array([100.0, 100.0 * rate / 2])
    for steady in range(1, 60, 7):
        for failed in range(1, steady + 1):
            expected = 2 * failed >= steady and stats.binom.sf(failed - 1, steady, rate) < 1e-6
            assert detector._unlikely(steady, failed) == expected
