"""Curves against hand-computed values and against Monte Carlo under the paper's assumptions."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import special

from viprl.errors import InvalidInputError
from viprl.prediction.base import Prediction
from viprl.variance import GRPO, RLOO, BiasWarning, DrGRPO

REPETITIONS = 1_200_000
MEAN_SCORE, SCORE_DEVIATION = 0.7, 1.3


def advantages(rewards, estimator, *, ddof=1, epsilon=1e-4):
    """Straight from the definitions; rewards (repetitions, n)."""
    n = rewards.shape[1]
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    if estimator == "dr_grpo":
        return centred
    if estimator == "rloo":
        return centred * n / (n - 1)
    return centred / (rewards.std(axis=1, ddof=ddof, keepdims=True) + epsilon)


def simulated_variance(rewards, estimator, rng, **settings):
    """Variance of (1/n) sum A_j H_j in units of Var(H), with scores H of a non-zero mean."""
    scores = MEAN_SCORE + SCORE_DEVIATION * rng.standard_normal(rewards.shape, dtype=np.float32)
    gradient = (advantages(rewards, estimator, **settings) * scores).mean(axis=1)
    return gradient.var(dtype=np.float64) / SCORE_DEVIATION**2


def bernoulli(rng, p, n, low=0.0, high=1.0):
    return np.where(rng.random((REPETITIONS, n), dtype=np.float32) < p, np.float32(high), np.float32(low))


@pytest.mark.slow
@pytest.mark.parametrize(("p", "n"), [(0.5, 2), (0.3, 3), (0.2, 8), (0.9, 5)])
def test_curves_agree_with_monte_carlo(p, n):
    rng = np.random.default_rng(n)
    prediction, rewards = Prediction.point([p]), bernoulli(rng, p, n)
    for model in (RLOO(), DrGRPO()):
        expected = simulated_variance(rewards, model.name, rng)
        assert model.variance(prediction, n)[0] == pytest.approx(expected, rel=0.01)
    for settings in ({}, {"ddof": 0}, {"epsilon": 0.3}):
        expected = simulated_variance(rewards, "grpo", rng, **settings)
        assert GRPO(**settings).variance(prediction, n)[0] == pytest.approx(expected, rel=0.01)


@pytest.mark.slow
def test_other_reward_scales_agree_with_monte_carlo():
    rng = np.random.default_rng(0)
    p, n = 0.3, 4
    signed = bernoulli(rng, p, n, low=-1.0)
    for model in (RLOO(), DrGRPO()):
        four = 4 * model.variance([p * (1 - p)], n)[0]
        assert four == pytest.approx(simulated_variance(signed, model.name, rng), rel=0.01), "Var(R) = 4 p(1-p)"
    expected = simulated_variance(signed, "grpo", rng, epsilon=0.5)
    model = GRPO(epsilon=0.5, reward_range=2.0)
    assert model.variance(Prediction.point([p]), n)[0] == pytest.approx(expected, rel=0.01)
    real = rng.gamma(2.0, 0.5, (REPETITIONS, n))  # Appendix E: Var(R) = 0.5 in place of p(1-p)
    for model in (RLOO(), DrGRPO()):
        assert model.variance([0.5], n)[0] == pytest.approx(simulated_variance(real, model.name, rng), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "beta", "n"), [(0.5, 2.0, 4), (3.0, 3.0, 8), (0.3, 0.3, 3)])
def test_posterior_curves_agree_with_monte_carlo(alpha, beta, n):
    """The success probability itself drawn from the posterior: the variance is its mean over p."""
    rng = np.random.default_rng(1)
    rewards = bernoulli(rng, rng.beta(alpha, beta, (REPETITIONS, 1)).astype(np.float32), n)
    prediction = Prediction.beta([alpha], [beta])
    for model in (RLOO(), DrGRPO(), GRPO()):
        expected = simulated_variance(rewards, model.name, rng)
        assert model.variance(prediction, n)[0] == pytest.approx(expected, rel=0.01), model.name


def test_vector_scores_need_the_trace_alone():
    """The same formulas hold for vectors with sigma_Z^2 the trace of the covariance."""
    rng = np.random.default_rng(2)
    n, p, repetitions = 4, 0.3, 400_000
    rewards = (rng.random((repetitions, n)) < p).astype(float)
    scores = rng.standard_normal((repetitions, n, 2)) * [1.0, 2.0] + [0.5, -1.0]
    gradient = np.einsum("rn,rnd->rd", advantages(rewards, "rloo"), scores) / n
    assert RLOO().variance([p * (1 - p)], n)[0] * 5.0 == pytest.approx(gradient.var(axis=0).sum(), rel=0.015)


def test_hand_values():
    assert RLOO().curve([0.2], [1, 2, 3, 5]).tolist() == [[np.inf, 0.2, 0.1, 0.05]]
    assert DrGRPO().curve([0.2], [1, 2, 4]).tolist() == [[0.0, 0.05, pytest.approx(0.0375)]]
    point = Prediction.point([0.5])
    # n = 2: with chance 1/2 one of each, A = +-1/2 / (1/sqrt 2), sum A^2 = 1, / 4
    assert GRPO(epsilon=0).variance(point, 2)[0] == pytest.approx(0.125)
    # n = 3 with one success: A = (2/3, -1/3, -1/3) / s, s^2 = (2/3)/2: sum A^2 = 2; chance 3/4; / 9
    assert GRPO(epsilon=0).variance(point, 3)[0] == pytest.approx(0.75 * 2 / 9)
    assert GRPO(epsilon=0, ddof=0).variance(point, 3)[0] == pytest.approx(0.75 * 3 / 9)
    assert GRPO().variance(point, 1)[0] == 0.0


def test_no_weight_no_variance_even_at_one():
    assert RLOO().variance([0.0, 0.2], [1, 1]).tolist() == [0.0, np.inf]


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (2.0, 5.0), (0.4, 0.5)])
def test_grpo_integrates_the_posterior(alpha, beta):
    """Closed form without epsilon: (n-1)/n^2 (1 - E[p^n] - E[(1-p)^n]) with Beta moments."""
    n = np.arange(2, 33)
    both = 1 - (special.beta(alpha + n, beta) + special.beta(alpha, beta + n)) / special.beta(alpha, beta)
    curve = GRPO(epsilon=0).curve(Prediction.beta([alpha], [beta]), n)[0]
    assert np.allclose(curve, (n - 1) / n**2 * both, rtol=0.006)
    nodes = np.linspace(0.01, 0.99, 7)
    discrete = GRPO(epsilon=0).curve(Prediction.from_nodes([nodes], np.ones(7)), n)[0]
    exact = [(k - 1) / k**2 * np.mean(1 - nodes**k - (1 - nodes) ** k) for k in n]
    assert np.allclose(discrete, exact, rtol=1e-10), "a discrete posterior is integrated exactly"


def test_grpo_curve_is_not_monotone():
    curves = GRPO().curve(Prediction.point([0.5, 0.05, 0.005]), np.arange(1, 200))
    peaks = curves.argmax(axis=1) + 1
    assert (np.diff(peaks) > 0).all(), "further out for rarer outcomes"
    assert peaks[2] == pytest.approx(np.sqrt(2 / 0.005), abs=1.5), "p (n-1)/n (1 - n p/2) for small p"
    for curve, peak in zip(curves, peaks, strict=True):
        assert (np.diff(curve[:peak]) > 0).all() and (np.diff(curve[peak:]) < 0).all()


def test_grpo_in_blocks_is_the_same(monkeypatch):
    prediction = Prediction.beta(np.linspace(0.2, 4, 50), np.linspace(3, 0.3, 50))
    whole = GRPO().curve(prediction, np.arange(1, 20))
    monkeypatch.setattr("viprl.variance.grpo._CHUNK", 1)
    assert np.array_equal(GRPO().curve(prediction, np.arange(1, 20)), whole)


def test_grpo_for_large_groups_is_finite():
    curve = GRPO().curve(Prediction.point([0.0, 1e-9, 0.5, 1.0]), [1, 512, 1024])
    assert np.isfinite(curve).all() and (curve[[0, 3]] == 0).all()
    assert curve[2, 2] == pytest.approx(1023 / 1024**2, rel=0.01)


def test_dr_grpo_warns_below_three_and_reports_the_corrected_variance():
    model = DrGRPO()
    for biased in (model, GRPO()):
        with pytest.warns(BiasWarning, match="min_group_size >= 3"):
            biased.check_min_group_size(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.check_min_group_size(3)
        GRPO().check_min_group_size(3)
        RLOO().check_min_group_size(2)
    corrected = model.bias_corrected_variance([0.25], [1, 2, 3])
    assert corrected.tolist() == [[np.inf, 0.25, 0.125]]
    n = np.arange(2, 30)
    assert np.allclose(model.curve([0.25], n) * (n / (n - 1)) ** 2, model.bias_corrected_variance([0.25], n[None, :]))


@pytest.mark.parametrize("model", [RLOO(), DrGRPO()])
def test_marginal_gain_and_slope(model):
    n = np.arange(3, 200)
    assert np.allclose(model.marginal_gain(n), model.factor(n) - model.factor(n + 1), rtol=1e-8)
    slope = -(model.factor(n + 1e-5) - model.factor(n - 1e-5)) / 2e-5
    assert np.allclose(model.size_at_slope(slope), n, rtol=1e-3)
    assert model.size_at_slope(0.0) == np.inf


def test_dr_grpo_slope_ends_at_three():
    assert DrGRPO().size_at_slope([1 / 27, 0.1, 1e9]).tolist() == [3.0, 3.0, 3.0]


def test_errors():
    with pytest.raises(InvalidInputError, match="a plain array"):
        GRPO().variance([0.1, 0.2], [3, 3])
    with pytest.raises(InvalidInputError, match="integers"):
        GRPO().variance(Prediction.point([0.1]), [2.5])
    with pytest.raises(InvalidInputError, match="n >= 1"):
        RLOO().variance([0.1], 0)
    with pytest.raises(InvalidInputError, match="one-dimensional"):
        RLOO().variance([[0.1]], 3)
    for settings in ({"ddof": 2}, {"epsilon": -1.0}, {"epsilon": np.nan}, {"reward_range": 0.0}):
        with pytest.raises(InvalidInputError):
            GRPO(**settings)


def test_grpo_refuses_real_rewards():
    base = Prediction.point([0.2, 0.5])
    real = Prediction(base.mean, base.bernoulli_variance, quadrature=base.nodes, reward_variance=[0.3, 0.1])
    with pytest.raises(InvalidInputError, match="binary rewards"):
        GRPO().curve(real, [3, 4])
    scaled = Prediction(
        base.mean, base.bernoulli_variance, quadrature=base.nodes, reward_variance=4 * base.bernoulli_variance
    )
    assert np.array_equal(GRPO().curve(scaled, [3, 4]), GRPO().curve(base, [3, 4]))
