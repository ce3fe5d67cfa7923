"""Each derivation of docs/beyond-the-paper.md against enumeration or simulation of its estimator."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from viprl.allocation import solve_allocation
from viprl.gradient.moments import variance_curve
from viprl.variance import RLOO


def variance_with_kl_loss(
    v1: ArrayLike, v2: ArrayLike, penalty_variance: ArrayLike, covariance: ArrayLike, beta: float, n: ArrayLike
) -> Any:
    """Variance of RLOO with a KL term in the loss, g - beta mean_j D_j.

    Args:
        v1, v2: constants of the reward part.
        penalty_variance: tr Var(D), D the gradient of one rollout's KL estimate.
        covariance: tr Cov((R - p)(H - EH), D).
        beta: weight of the KL term; n: group sizes, at least 2.
    """
    sizes = np.asarray(n, dtype=np.float64)
    extra = beta**2 * np.asarray(penalty_variance) - 2 * beta * np.asarray(covariance)
    return variance_curve(v1, v2, sizes) + extra / sizes


def clipped_weight(ratio: ArrayLike, success: ArrayLike, low: float, high: float) -> Any:
    """Factor on a rollout's (or token's) gradient under the clipped surrogate, for binary rewards in mixed groups.

    min(rho A, clip(rho, 1 - low, 1 + high) A) has the gradient rho A H, except where it is flat: rho > 1 + high for
    A > 0 (a success), rho < 1 - low for A < 0 (a failure).
    """
    rho, good = np.asarray(ratio, dtype=np.float64), np.asarray(success, dtype=bool)
    flat = np.where(good, rho > 1 + high, rho < 1 - low)
    return np.where(flat, 0.0, rho)


def posterior_baseline_factor(n: ArrayLike, prior_rollouts: ArrayLike) -> Any:
    """f(n) with Var = sigma^2 E[p(1-p)] f(n), for the baseline that joins the prediction and the other rollouts.

    b_j = (m p_hat + sum_{i != j} R_i) / (m + n - 1), with a Beta posterior worth m rollouts:
    f = (1 + 1 / (m + n - 1)) / n. m = 0 is RLOO, 1 / (n - 1).
    """
    sizes, m = np.asarray(n, dtype=np.float64), np.asarray(prior_rollouts, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return (1 + 1 / (m + sizes - 1)) / sizes


def prediction_baseline_factor(n: ArrayLike, prior_rollouts: ArrayLike) -> Any:
    """The same for the prediction alone, A = R - p_hat: f = (1 + 1/m) / n; below RLOO's 1/(n-1) if m > n - 1."""
    sizes, m = np.asarray(n, dtype=np.float64), np.asarray(prior_rollouts, dtype=np.float64)
    return (1 + 1 / m) / sizes


def token_budget_sizes(variance: ArrayLike, cost: ArrayLike, tokens: float) -> Any:
    """Real n_q that minimise sum_q v_q / (n_q - 1) subject to sum_q c_q n_q = tokens, without bounds.

    n_q - 1 is proportional to sqrt(v_q / c_q). The exact integer solution within bounds is
    ``solve_allocation(..., cost=c)``.
    """
    v, c = np.asarray(variance, dtype=np.float64), np.asarray(cost, dtype=np.float64)
    share = np.sqrt(v / c)
    return np.asarray(1 + (tokens - c.sum()) * share / (c @ share), dtype=np.float64)


def trace_covariance(x: np.ndarray, y: np.ndarray | None = None) -> float:
    y = x if y is None else y
    return float(((x - x.mean(0)) * (y - y.mean(0))).sum(1).mean())


def constants(r: np.ndarray, h: np.ndarray) -> tuple[float, float]:
    """V1, V2 of a population of equally likely rollouts."""
    kernel = (r[:, None] - r)[..., None] * (h[:, None] - h) / 2
    return (
        trace_covariance((r - r.mean())[:, None] * (h - h.mean(0))),
        trace_covariance(kernel.reshape(-1, h.shape[1])),
    )


def rloo(r: np.ndarray, h: np.ndarray) -> np.ndarray:
    """(M, d) RLOO estimates of draws r (M, n), h (M, n, d)."""
    n = r.shape[1]
    return (((r - r.mean(1, keepdims=True)) * n / (n - 1))[..., None] * h).mean(1)


def population(seed: int, size: int = 7, d: int = 4):
    rng = np.random.default_rng(seed)
    r = (np.arange(size) < 3).astype(float)
    return rng, r, rng.normal(size=(size, d)) * (1 + 2 * r[:, None])


@pytest.mark.parametrize("n", [2, 3, 4])
def test_kl_in_the_loss(n: int) -> None:
    rng, r, h = population(0)
    d = rng.normal(size=h.shape) + 0.5 * h
    beta = 0.3
    draws = np.array(list(itertools.product(range(7), repeat=n)))
    truth = trace_covariance(rloo(r[draws], h[draws]) - beta * d[draws].mean(1))
    covariance = trace_covariance((r - r.mean())[:, None] * (h - h.mean(0)), d)
    found = variance_with_kl_loss(*constants(r, h), trace_covariance(d), covariance, beta, n)
    assert found == pytest.approx(truth, rel=1e-10)
    # dropping the covariance, or all of the penalty, would be visibly wrong
    assert abs(variance_with_kl_loss(*constants(r, h), trace_covariance(d), 0.0, beta, n) / truth - 1) > 0.01


def test_kl_in_the_reward_is_a_real_reward() -> None:
    rng, r, h = population(1)
    penalised = r - 0.2 * rng.gamma(2.0, size=len(r))
    draws = np.array(list(itertools.product(range(7), repeat=3)))
    truth = trace_covariance(rloo(penalised[draws], h[draws]))
    assert variance_curve(*constants(penalised, h), 3) == pytest.approx(truth, rel=1e-10)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_clipped_off_policy_rollouts(n: int) -> None:
    """The surrogate's own gradient, with A of the group, equals the U-statistic of re-weighted gradients."""
    rng, r, h = population(2)
    rho = np.exp(rng.normal(0, 0.4, len(r)))
    low, high = 0.2, 0.28
    draws = np.array(list(itertools.product(range(7), repeat=n)))
    advantage = (r[draws] - r[draws].mean(1, keepdims=True)) * n / (n - 1)
    ratio = rho[draws]
    active = np.where(advantage > 0, ratio <= 1 + high, ratio >= 1 - low)  # where min(...) follows rho A
    gradient = (advantage * ratio * active)[..., None] * h[draws]
    truth = trace_covariance(gradient.mean(1))
    weighted = clipped_weight(rho, r, low, high)[:, None] * h
    assert variance_curve(*constants(r, weighted), n) == pytest.approx(truth, rel=1e-10)
    assert 0 < (clipped_weight(rho, r, low, high) == 0).sum() < len(r)
    assert abs(variance_curve(*constants(r, h), n) / truth - 1) > 0.05  # ignoring reuse is visibly wrong


def test_surrogate_gradient_is_flat_where_stated() -> None:
    """Finite differences of min(rho A, clip(rho) A) in log rho, around both clipping points."""
    rho = np.array([0.5, 0.79, 0.81, 1.0, 1.27, 1.29, 2.0])
    for success, advantage in ((True, 0.7), (False, -0.4)):

        def surrogate(log_rho: np.ndarray, advantage: float = advantage) -> np.ndarray:
            value = np.exp(log_rho)
            return np.minimum(value * advantage, np.clip(value, 0.8, 1.28) * advantage)

        slope = (surrogate(np.log(rho) + 1e-6) - surrogate(np.log(rho) - 1e-6)) / 2e-6
        np.testing.assert_allclose(slope, advantage * clipped_weight(rho, np.full(7, success), 0.2, 0.28), atol=1e-6)


def test_unequal_noise() -> None:
    """Independent R and H with prompts of different Var(H): v_q = sigma_q^2 p(1-p)/(n-1), n - 1 ~ sigma_q sqrt(a_q)."""
    rng = np.random.default_rng(3)
    sigma, p, n, rounds = np.array([0.5, 2.0]), np.array([0.5, 0.2]), np.array([4, 9]), 60_000
    for s, q, size in zip(sigma, p, n, strict=True):
        r = (rng.random((rounds, size)) < q).astype(float)
        h = rng.normal(0, s, (rounds, size, 1))
        assert trace_covariance(rloo(r, h)) == pytest.approx(s**2 * q * (1 - q) / (size - 1), rel=0.04)
    sizes = solve_allocation(RLOO(), [0.25] * 3, 300, 3, 300, scale=[1.0, 4.0, 9.0])
    np.testing.assert_allclose((sizes - 1) / (sizes[0] - 1), [1, 2, 3], rtol=0.02)


def test_token_budget() -> None:
    """Simulated batches: at the same expected tokens, sqrt(v/c) beats sqrt(v) and equal groups by what it predicts."""
    rng = np.random.default_rng(4)
    p, length = np.array([0.5, 0.5, 0.1, 0.3]), np.array([10, 200, 40, 100])
    v = p * (1 - p)
    tokens = 8 * length.sum()
    relaxed = token_budget_sizes(v, length, tokens)
    assert (length * relaxed).sum() == pytest.approx(tokens)
    sizes = solve_allocation(RLOO(), v, int(tokens), 2, 200, cost=length)
    assert (sizes * length).sum() <= tokens
    np.testing.assert_allclose(sizes, relaxed, atol=1.5)
    grid = itertools.product(*(range(max(2, int(x) - 4), int(x) + 5) for x in relaxed))
    feasible = np.array([g for g in grid if (np.array(g) * length).sum() <= tokens])
    best = (v / (feasible - 1)).sum(1).min()
    assert (v / (sizes - 1)).sum() == pytest.approx(best)
    equal = np.full(4, 8)

    def simulated(group_sizes: np.ndarray) -> float:
        total = 0.0
        for q, n in zip(p, group_sizes, strict=True):
            r = (rng.random((20_000, n)) < q).astype(float)
            total += trace_covariance(rloo(r, rng.normal(size=(20_000, n, 1))))
        return total

    measured, promised = simulated(sizes) / simulated(equal), (v / (sizes - 1)).sum() / (v / 7).sum()
    assert measured == pytest.approx(promised, rel=0.05) and promised < 0.9


@pytest.mark.parametrize(("n", "m"), [(1, 6.0), (4, 2.0), (4, 12.0), (8, 7.0)])
def test_predictions_as_baselines(n: int, m: float) -> None:
    """p from its Beta posterior, E H = 0, H independent of R: both baselines' variances, and unbiasedness."""
    rng = np.random.default_rng(5)
    rounds, alpha = 300_000, 0.4 * m
    p = rng.beta(alpha, m - alpha, rounds)
    r = (rng.random((rounds, n)) < p[:, None]).astype(float)
    h = rng.normal(size=(rounds, n))
    spread = alpha * (m - alpha) / (m * (m + 1))  # E[p(1-p)]
    alone = ((r - 0.4) * h).mean(1)
    others = r.sum(1, keepdims=True) - r
    joint = ((r - (alpha + others) / (m + n - 1)) * h).mean(1)
    assert alone.var() == pytest.approx(spread * prediction_baseline_factor(n, m), rel=0.02)
    assert joint.var() == pytest.approx(spread * posterior_baseline_factor(n, m), rel=0.02)
    if n > 1:
        loo = ((r - others / (n - 1)) * h).mean(1)
        assert (alone.var() < loo.var()) == (m > n - 1) or m == n - 1
        assert joint.var() < min(alone.var(), loo.var()) * 1.01


def test_prediction_baseline_is_unbiased_with_one_rollout() -> None:
    """A two-armed policy pi = sigmoid(theta): gradient of the success probability, estimated from single rollouts."""
    rng = np.random.default_rng(6)
    theta, success = 0.3, np.array([0.2, 0.7])  # success probability of each arm
    pi = 1 / (1 + np.exp(-theta))
    arm = (rng.random(400_000) < pi).astype(int)
    r = (rng.random(len(arm)) < success[arm]).astype(float)
    score = arm - pi  # d log pi(arm) / d theta
    truth = pi * (1 - pi) * (success[1] - success[0])
    for baseline in (0.0, 0.55, 0.9):  # any baseline that does not know this rollout
        estimate = (r - baseline) * score
        assert estimate.mean() == pytest.approx(truth, abs=4 * estimate.std() / np.sqrt(len(arm)))
