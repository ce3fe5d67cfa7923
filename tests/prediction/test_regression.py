"""The regression core against closed forms, scikit-learn and its own refits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from viprl.prediction.regression import INTERCEPT_PRECISION, GroupedLogistic, Linear


def make_problem(seed, n=400, useful=5, useless=20):
    rng = np.random.default_rng(seed)
    x = np.concatenate(
        [np.ones((n, 1)), rng.normal(size=(n, useful)) / np.sqrt(useful), rng.normal(size=(n, useless))], axis=1
    )
    x[:, 1 + useful :] /= np.sqrt(useless)
    w = np.concatenate([[-0.4], rng.normal(size=useful) * 1.5, np.zeros(useless)])
    return rng, x, special.expit(x @ w), {"good": slice(1, 1 + useful), "noise": slice(1 + useful, x.shape[1])}


def frozen(groups, width, alpha):
    model = GroupedLogistic(groups, width, 0.4)
    model.alpha[:] = alpha
    model._update_precisions = lambda: None
    model._refit()
    return model


def test_posterior_is_bayesian_linear_regression_of_the_working_observations():
    rng, x, _, groups = make_problem(0)
    weight, target = rng.uniform(0.1, 1, len(x)), rng.normal(size=len(x))
    model = frozen(groups, x.shape[1], [2.0, 7.0])
    for part in np.array_split(np.arange(len(x)), 7):
        model.learn(x[part], weight[part], weight[part] * target[part])
    prior = np.diag(np.r_[INTERCEPT_PRECISION, np.full(5, 2.0), np.full(20, 7.0)])
    start = np.r_[special.logit(0.4), np.zeros(25)]
    cov = np.linalg.inv(prior + (x.T * weight) @ x)
    mean = cov @ (prior @ start + (x.T * weight) @ target)
    found = model.predict(x[:50])
    assert found.mean == pytest.approx(x[:50] @ mean, abs=1e-9)
    assert found.variance == pytest.approx(np.einsum("bf,fg,bg->b", x[:50], cov, x[:50]), abs=1e-9)


def test_iterated_linearisation_reaches_penalised_logistic_regression():
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng, x, p, groups = make_problem(1)
    y = rng.binomial(1, p).astype(float)
    model = frozen(groups, x.shape[1], [3.0, 3.0])
    model.moments[:] = [0.5, 1.0]  # one rollout each: the correlation does not matter
    weight, target = np.zeros(len(x)), np.zeros(len(x))
    for _ in range(30):  # replacing every prompt's working observation is one Fisher-scoring step
        linear = model.predict(x)
        new_weight, new_target = model.linearise(linear, y, np.ones(len(x)))
        model.learn(x, new_weight - weight, new_weight * new_target - weight * target)
        weight, target = new_weight, new_target
    oracle = linear_model.LogisticRegression(C=1 / 3.0, tol=1e-10, max_iter=2000).fit(x[:, 1:], y)
    assert model.weights[1:] == pytest.approx(oracle.coef_[0], abs=0.02)  # intercepts differ in their penalty only


def test_without_is_the_refit_without_the_prompt():
    rng, x, _, groups = make_problem(2, n=60)
    weight, target = rng.uniform(0.1, 1, 60), rng.normal(size=60)
    model = frozen(groups, x.shape[1], [2.0, 2.0])
    model.learn(x, weight, weight * target)
    out = model.without(model.predict(x[:5]), weight[:5], target[:5])
    for i in range(5):
        rest = np.arange(60) != i
        other = frozen(groups, x.shape[1], [2.0, 2.0])
        other.learn(x[rest], weight[rest], (weight * target)[rest])
        alone = other.predict(x[i : i + 1])
        assert out.mean[i] == pytest.approx(alone.mean[0], abs=1e-9)
        assert out.variance[i] == pytest.approx(alone.variance[0], abs=1e-9)


def test_useless_blocks_are_shrunk_away_and_useful_ones_are_not():
    rng, x, p, groups = make_problem(3, n=3000)
    model = GroupedLogistic(groups, x.shape[1], 0.4)
    for part in np.array_split(np.arange(3000), 20):
        linear = model.predict(x[part])
        k = rng.binomial(8, p[part])
        model.learn_correlation(linear, k / 8, np.full(len(part), 8.0))
        weight, target = model.linearise(linear, k / 8, np.full(len(part), 8.0))
        model.learn(x[part], weight, weight * target)
    good, noise = model.alpha
    assert noise > 10 * good
    assert model.correlation < 0.1, "these prompts differ by their features only"


def test_correlation_is_recovered():
    rng = np.random.default_rng(4)
    model = GroupedLogistic({}, 1, 0.4)
    p = rng.beta(0.8, 1.2, 5000)  # mean .4, intra-class correlation 1 / 3
    k = rng.binomial(8, p)
    flat = Linear(np.full(5000, special.logit(0.4)), np.zeros(5000))
    model.learn_correlation(flat, k / 8, np.full(5000, 8.0))
    assert model.correlation == pytest.approx(1 / 3, abs=0.03)


def test_rate_is_the_mean_of_the_sigmoid():
    mean, variance = np.array([-2.0, 0.0, 1.0]), np.array([0.5, 2.0, 1.0])
    z = np.random.default_rng(0).normal(size=200_000)
    exact = [special.expit(m + np.sqrt(v) * z).mean() for m, v in zip(mean, variance, strict=True)]
    assert Linear(mean, variance).rate() == pytest.approx(exact, abs=0.01)
