"""Predicting the variance of real rewards (Appendix E)."""

from __future__ import annotations

import numpy as np
import pytest

from viprl.errors import InvalidInputError
from viprl.prediction import RewardVariancePredictor
from viprl.prediction.reward_variance import softplus
from viprl.testing import PredictorConformance
from viprl.testing.checks import same

N = 300
IDS = [f"p{i}" for i in range(N)]


def world(seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, 6))
    deviation = scale * np.exp(0.8 * x[:, 0]) * rng.uniform(0.7, 1.4, N)
    return rng, x, deviation


def run(predictor, rng, deviation, steps, batch=60, n=8):
    order = np.concatenate([rng.permutation(N) for _ in range(1 + steps * batch // N)])
    for t in range(steps):
        rows = order[t * batch : (t + 1) * batch]
        rewards = 3.0 + deviation[rows, None] * rng.normal(size=(batch, n))
        predictor.observe_rewards(
            [IDS[i] for i in rows], rewards.mean(axis=1), rewards.var(axis=1, ddof=1), np.full(batch, n)
        )


@pytest.mark.parametrize("scale", [1.0, 0.01, 500.0])
def test_is_calibrated_and_ranks_prompts_in_any_unit(scale):
    rng, x, deviation = world(scale=scale)
    predictor = RewardVariancePredictor(x, prompt_ids=IDS)
    run(predictor, rng, deviation, 10)
    found = predictor.predict(IDS).reward_variance
    assert found.sum() == pytest.approx((deviation**2).sum(), rel=0.15)
    assert np.corrcoef(np.log(found), np.log(deviation))[0, 1] > 0.9


def test_embeddings_help_cold_prompts():
    rng, x, deviation = world(1)
    predictor = RewardVariancePredictor(x, prompt_ids=IDS)
    run(predictor, rng, deviation, 4)
    found = predictor.predict(IDS)
    cold = found.cold
    assert 0 < cold.sum() < N
    assert np.corrcoef(np.log(found.reward_variance[cold]), np.log(deviation[cold]))[0, 1] > 0.6


def test_groups_that_agree_lower_the_prediction_but_not_to_zero():
    predictor = RewardVariancePredictor()
    predictor.observe_rewards(["a", "b"], [0.5, 0.5], [0.3, 0.2], [8, 8])
    before = predictor.predict(["b"]).reward_variance[0]
    values = []
    for _ in range(4):
        predictor.observe_rewards(["b"], [1.0], [0.0], [8])
        values.append(predictor.predict(["b"]).reward_variance[0])
    assert before > values[0] > values[1] > values[2] > values[3] > 0


def test_all_groups_agree_from_the_start():
    predictor = RewardVariancePredictor()
    predictor.observe_rewards(["a", "b"], [1.0, 0.0], [0.0, 0.0], [8, 8])
    found = predictor.predict(["a", "b", "c"]).reward_variance
    assert np.isfinite(found).all() and (found > 0).all() and found[2] > found[0]


def test_own_history_follows_the_inverse_gamma_posterior():
    predictor = RewardVariancePredictor(keep=0.5)
    predictor.observe_rewards(["a", "b"], [0.0, 0.0], [1.0, 3.0], [5, 5])
    first = predictor.metrics()["variance_scale"]
    predictor.observe_rewards(["a"], [0.0], [2.0], [9])
    level, kappa = predictor.metrics()["variance_scale"], predictor.metrics()["variance_spread"]
    linear = predictor._linear(np.array([0]), np.ones((1, 1)))
    strength = 2 + 2 / kappa
    own = 0.5 * 4 * 1.0 / first + 8 * 2.0 / level  # each relative to the level at its visit
    expected = level * (strength * softplus(linear.mean)[0] + own) / (strength + 0.5 * 4 + 8)
    assert first == pytest.approx(2.0)
    assert predictor.predict(["a"]).reward_variance[0] == pytest.approx(expected)


def test_repeated_ids_are_pooled_exactly():
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=11)
    parts = [rewards[:4], rewards[4:]]
    apart, together = RewardVariancePredictor(), RewardVariancePredictor()
    apart.observe_rewards(["a", "a"], [r.mean() for r in parts], [r.var(ddof=1) for r in parts], [4, 7])
    together.observe_rewards(["a"], [rewards.mean()], [rewards.var(ddof=1)], [11])
    assert apart.predict(["a"]).reward_variance == pytest.approx(together.predict(["a"]).reward_variance)


def test_single_and_missing_rewards_need_no_variance():
    predictor = RewardVariancePredictor()
    predictor.observe_rewards(["a", "b"], [0.5, np.nan], [np.nan, np.nan], [1, 0])
    assert list(predictor.predict(["a", "b"]).cold) == [False, True]


@pytest.mark.parametrize(
    ("means", "variances", "rollouts"),
    [
        ([0.0], [-1.0], [4]),
        ([0.0], [np.nan], [4]),
        ([np.inf], [1.0], [4]),
        ([0.0], [1.0], [-1]),
        ([0.0, 1.0], [1.0], [4]),
    ],
)
def test_impossible_moments_are_refused(means, variances, rollouts):
    with pytest.raises(InvalidInputError):
        RewardVariancePredictor().observe_rewards(["a"], means, variances, rollouts)


def test_binary_counts_are_a_special_case():
    counts, moments = RewardVariancePredictor(), RewardVariancePredictor()
    counts.observe(["a", "b"], [2, 8], [8, 8])
    moments.observe_rewards(["a", "b"], [0.25, 1.0], [2 * 6 / (8 * 7), 0.0], [8, 8])
    assert same(counts.state_dict(), moments.state_dict())


def test_state_round_trip_and_merge():
    rng, x, deviation = world(2)
    a = RewardVariancePredictor(x, prompt_ids=IDS)
    run(a, rng, deviation, 6)
    b = RewardVariancePredictor(x, prompt_ids=IDS)
    b.load_state_dict(a.state_dict())
    for predictor in (a, b):
        run(predictor, np.random.default_rng(9), deviation, 3)
    assert same(a.state_dict(), b.state_dict())
    c = RewardVariancePredictor(x[5:], prompt_ids=IDS[5:])
    assert c.merge_state(a.state_dict())["gone"] == IDS[:5]
    assert c.predict(IDS[5:20]).reward_variance == pytest.approx(a.predict(IDS[5:20]).reward_variance, rel=0.05)


class TestConformance(PredictorConformance):
    def make(self):
        x = np.random.default_rng(5).normal(size=(24, 6))
        return RewardVariancePredictor(x, prompt_ids=self.prompt_ids)
