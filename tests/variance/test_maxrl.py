"""MaxRL's variance: by enumeration, by Monte Carlo with scores, and what allocation does with it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import viprl
from viprl.errors import ConfigurationError, InvalidInputError
from viprl.prediction.base import Prediction
from viprl.variance import MaxRL

GRID = np.concatenate([np.logspace(-6, -1, 25), np.linspace(0.12, 0.999, 25)])


@pytest.mark.parametrize("p", [0.03, 0.4, 0.95])
@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_curve_by_enumeration(p: float, n: int) -> None:
    total = 0.0
    for outcome in itertools.product((0.0, 1.0), repeat=n):
        advantages = viprl.group_advantages([outcome], [n], "maxrl")
        chance = np.prod([p if r else 1 - p for r in outcome])
        total += float(chance * np.square(advantages).sum()) / n**2
    scale = (1 - (1 - p) ** 7) / (1 - (1 - p) ** (n - 1))
    np.testing.assert_allclose(MaxRL(terms=7).variance(Prediction.point([p]), n), total * scale**2, rtol=1e-10)


def test_the_estimate_has_the_objectives_gradient_and_the_models_variance() -> None:
    """Scores H = b (R - p) + e, Var(e) = 1: the mean is b p q (1 - q^T) / p for every n, the scatter is the model's."""
    draws = np.random.default_rng(0)
    p, b, terms, groups = 0.15, 0.8, 5, 200_000
    for n in (3, 6, 12):
        rewards = (draws.random((groups, n)) < p).astype(float)
        noise = draws.normal(size=(groups, n))
        advantages = viprl.group_advantages(rewards, np.full(groups, n), "maxrl").reshape(groups, n)
        scale = (1 - (1 - p) ** terms) / (1 - (1 - p) ** (n - 1))
        signal, scatter = scale * (advantages * b * (rewards - p)).mean(1), scale * (advantages * noise).mean(1)
        wanted = b * (1 - p) * (1 - (1 - p) ** terms)
        assert abs(signal.mean() - wanted) < 4 * signal.std() / np.sqrt(groups)
        variance = float(MaxRL(terms=terms).variance(Prediction.point([p]), n)[0])
        error = np.square(scatter).std() / np.sqrt(groups)
        assert abs(np.square(scatter).mean() - variance) < 4 * error


@pytest.mark.parametrize("terms", [1, 3, 7, 31, 200])
def test_curves_fall_and_are_convex(terms: int) -> None:
    curve = MaxRL(terms=terms).curve(Prediction.point(GRID), np.arange(2, 80))
    first = np.diff(curve, axis=1)
    assert (first <= 0).all() and (np.diff(first, axis=1) >= -1e-12 * curve[:, :1]).all()


def test_surely_dead_or_solved_prompts_have_none_and_a_group_of_one_is_no_estimate() -> None:
    curve = MaxRL().curve(Prediction.point([0.0, 1.0, 0.3]), [1, 4])
    np.testing.assert_array_equal(curve[:2], 0.0)
    assert curve[2, 0] == np.inf and 0 < curve[2, 1] < np.inf


def test_harder_prompts_get_more_than_under_rloo() -> None:
    prediction = Prediction.point([0.1, 0.3, 0.5, 0.9])
    hard = viprl.solve_allocation(MaxRL(), prediction, budget=64, min_group_size=3, max_group_size=40)
    even = viprl.solve_allocation(viprl.RLOO(), prediction, budget=64, min_group_size=3, max_group_size=40)
    assert hard[0] > even[0] and hard[3] < even[3] and hard.sum() == 64


def test_advantages_are_relative_to_the_mean() -> None:
    found = viprl.group_advantages([[1, 0, 0, 0], [0, 0], [1, 1, None]], [4, 2, 3], "maxrl")
    np.testing.assert_allclose(found, [3, -1, -1, -1, 0, 0, 0, 0, 0])
    with pytest.raises(InvalidInputError, match=r"must be 0 \(failure\) to 1"):
        viprl.group_advantages([[1, -1]], [2], "maxrl")
    with pytest.raises(ConfigurationError, match="divides by the mean reward"):
        viprl.AllocationSettings(estimator="maxrl", reward_values=(-1, 1))
    with pytest.raises(InvalidInputError, match="terms"):
        MaxRL(terms=0)


def test_an_allocator_of_its_own() -> None:
    allocator = viprl.build_allocator(None, viprl.AllocationSettings(estimator="maxrl", predictor="beta"))
    draws = np.random.default_rng(1)
    rates = {f"q{i}": float(p) for i, p in enumerate(draws.uniform(0.02, 0.98, 40))}
    for _ in range(30):
        plan = allocator.allocate(list(rates), 320)
        rewards = [(draws.random(n) < rates[str(i)]).astype(float) for i, n in plan]
        assert np.isfinite(plan.advantages(rewards)).all()
        allocator.observe(plan, rewards)
    assert plan.estimator == "maxrl" and not allocator.guard_holding
    hard = np.array([rates[str(i)] < 0.3 for i in plan.prompt_ids])
    assert plan.group_sizes[hard].mean() > plan.group_sizes[~hard].mean()
