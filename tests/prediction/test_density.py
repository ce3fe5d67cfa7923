"""Grid, spread over prompts, and movement."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from viprl.prediction.drift import Drift, walk_generator
from viprl.prediction.grid import LogitGrid
from viprl.prediction.prompts import KNOTS, PromptDistribution

GRID = LogitGrid()


def posterior(prompts, mean, k, n):
    density = prompts.density(mean)
    log_like = GRID.log_likelihood(k, n)
    density = density * np.exp(log_like - log_like.max(axis=1, keepdims=True))
    return density / density.sum(axis=1, keepdims=True)


def test_grid_posterior_is_the_beta_posterior():
    prompts = PromptDistribution(GRID)
    for k, n in [(0, 8), (1, 8), (4, 8), (8, 8), (0, 32), (20, 32)]:
        found = posterior(prompts, np.array([0.4]), np.array([float(k)]), np.array([float(n)]))[0]
        law = stats.beta(0.3 + k, 0.45 + n - k)
        assert found @ GRID.p == pytest.approx(law.mean(), abs=0.006)
        expected = law.mean() * (1 - law.mean()) - law.var()
        assert found @ GRID.bernoulli_variance == pytest.approx(expected, abs=0.004)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(KNOTS[0], KNOTS[-1]), min_size=1, max_size=8))
def test_densities_have_exactly_the_mean_asked_for(means):
    prompts = PromptDistribution(GRID)
    found = prompts.density(np.array(means))
    assert found @ GRID.p == pytest.approx(means, abs=1e-9)
    assert found.sum(axis=1) == pytest.approx(1.0) and found.min() >= 0


def test_spread_is_learned_where_it_depends_on_the_mean():
    """Easy prompts are all alike here, hard ones are not: two kinds that no function of m (1 - m) tells apart."""
    rng = np.random.default_rng(0)
    prompts = PromptDistribution(GRID)
    for _ in range(20):
        mean = rng.choice([0.2, 0.8], 256)
        p = np.where(mean == 0.8, rng.beta(40, 10, 256), rng.binomial(1, 0.2, 256))
        k = rng.binomial(8, p).astype(float)
        prompts.learn(posterior(prompts, mean, k, np.full(256, 8.0)), mean, np.ones(256))
    spread = prompts.density(np.array([0.2, 0.8])) @ GRID.bernoulli_variance
    assert spread[0] < 0.03, "0 or 1"
    assert spread[1] == pytest.approx(0.157, abs=0.02)


def test_prompt_distribution_state_round_trip():
    a, b = PromptDistribution(GRID), PromptDistribution(GRID)
    mean = np.linspace(0.1, 0.9, 20)
    a.learn(posterior(a, mean, np.full(20, 3.0), np.full(20, 8.0)), mean, np.ones(20))
    b.load(a.state())
    assert np.array_equal(a.table, b.table)


@pytest.mark.parametrize(("deviation", "shift"), [(0.2, 0.0), (0.45, 0.1), (1.0, -0.1), (0.0, 0.0)])
def test_generator_has_the_walks_moments(deviation, shift):
    """d/dt E[u] = shift and d/dt Var[u] = deviation^2 (plus what upwinding adds) in the interior."""
    rates = walk_generator(GRID.u, deviation, shift)
    assert rates.sum(axis=0) == pytest.approx(0.0, abs=1e-9)
    assert (rates - np.diag(np.diag(rates))).min() >= 0
    middle = slice(5, -5)
    drift = (GRID.u[:, None] * rates).sum(axis=0)
    second = ((GRID.u[:, None] - GRID.u) ** 2 * rates).sum(axis=0)
    assert drift[middle] == pytest.approx(shift, abs=1e-9)
    gaps = np.r_[np.diff(GRID.u), 0] if shift > 0 else np.r_[0, np.diff(GRID.u)]
    assert second[middle] == pytest.approx((deviation**2 + abs(shift) * gaps)[middle], abs=1e-9)


@pytest.mark.parametrize("truth", [0.0, 0.45])
def test_drift_finds_how_fast_prompts_move(truth):
    rng = np.random.default_rng(1)
    drift = Drift(GRID)
    u = rng.normal(-0.5, 1.5, 400)
    density = np.tile(np.exp(-0.5 * ((GRID.u + 0.5) / 1.5) ** 2) * GRID.width, (400, 1))
    density /= density.sum(axis=1, keepdims=True)
    for step in range(25):
        u = u + truth * rng.normal(size=400)
        k = rng.binomial(16, 1 / (1 + np.exp(-u))).astype(float)
        log_like = GRID.log_likelihood(k, np.full(400, 16.0))
        like = np.exp(log_like - log_like.max(axis=1, keepdims=True))
        if step:
            drift.learn(density, like, np.ones(400))
        density = drift.move(density) * like
        density /= density.sum(axis=1, keepdims=True)
    assert drift.deviation == pytest.approx(truth, abs=0.15)


def test_drift_finds_a_common_shift():
    rng = np.random.default_rng(2)
    drift = Drift(GRID)
    u = rng.normal(-1.5, 0.7, 600)
    density = np.tile(np.exp(-0.5 * ((GRID.u + 1.5) / 0.7) ** 2) * GRID.width, (600, 1))
    density /= density.sum(axis=1, keepdims=True)
    for _ in range(25):
        u = u + 0.1
        k = rng.binomial(16, 1 / (1 + np.exp(-u))).astype(float)
        log_like = GRID.log_likelihood(k, np.full(600, 16.0))
        like = np.exp(log_like - log_like.max(axis=1, keepdims=True))
        drift.learn(density, like, np.ones(600))
        density = drift.move(density) * like
        density /= density.sum(axis=1, keepdims=True)
    assert drift.shift > 0.05
