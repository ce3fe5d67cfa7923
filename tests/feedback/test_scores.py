"""Scores against scikit-learn, and their round trip."""

from __future__ import annotations

import numpy as np
import pytest

from viprl.feedback.scores import PredictionScores

metrics = pytest.importorskip("sklearn.metrics")


def test_scores_are_sklearns() -> None:
    rng = np.random.default_rng(0)
    p, n = rng.uniform(0.01, 0.99, 200), rng.integers(1, 9, 200)
    k = rng.binomial(n, p)
    labels = np.concatenate([np.r_[np.ones(a), np.zeros(b - a)] for a, b in zip(k, n, strict=True)])
    predicted = np.repeat(p, n)
    scores = PredictionScores()
    scores.update(p, k.astype(float), n.astype(float))
    found = scores.metrics()
    assert found["log_loss"] == pytest.approx(metrics.log_loss(labels, predicted))
    assert found["brier"] == pytest.approx(metrics.brier_score_loss(labels, predicted))
    assert found["log_loss_constant"] == pytest.approx(np.log(2))
    bins = np.minimum((predicted * 10).astype(int), 9)
    error = sum(abs((predicted - labels)[bins == b].sum()) for b in range(10)) / len(labels)
    assert found["calibration_error"] == pytest.approx(error)


def test_the_constant_follows_the_success_rate() -> None:
    scores = PredictionScores()
    for _ in range(30):
        scores.update(np.full(10, 0.5), np.full(10, 8.0), np.full(10, 8.0))
    found = scores.metrics()
    assert found["log_loss_constant"] < 0.1 < found["log_loss"] == pytest.approx(np.log(2))


def test_empty_steps_change_nothing_and_state_round_trips() -> None:
    scores = PredictionScores()
    scores.update(np.array([0.3]), np.zeros(1), np.zeros(1))
    assert scores.metrics() == {}
    scores.update(np.array([0.3, 0.9]), np.array([1.0, 4.0]), np.array([4.0, 4.0]))
    other = PredictionScores()
    other.load_state_dict(scores.state_dict())
    assert other.metrics() == scores.metrics()
    np.testing.assert_array_equal(other.reliability(), scores.reliability())
