"""The policies' rules on problems small enough to check by hand or by enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from viprl import registry
from viprl.allocation import (
    VIP,
    InverseAccuracy,
    InverseVariance,
    KnapsackRL,
    Relaxed,
    Uniform,
    objective,
    solve_allocation,
)
from viprl.errors import InvalidInputError
from viprl.prediction.base import Prediction
from viprl.variance import GRPO, RLOO, DrGRPO


def allocate(policy, prediction, budget, low=3, high=32, model=None, **more):
    model = model or RLOO()
    return policy.allocate(prediction, model=model, budget=budget, min_group_size=low, max_group_size=high, **more)


def test_repr_shows_settings():
    assert repr(InverseAccuracy(epsilon=0.1)) == "InverseAccuracy(epsilon=0.1)"


def test_uniform_gives_the_remainder_to_the_earlier_prompts():
    prediction = Prediction.point([0.9, 0.1, 0.5])
    assert allocate(Uniform(), prediction, 24).tolist() == [8, 8, 8]
    assert allocate(Uniform(), prediction, 26).tolist() == [9, 9, 8]
    assert allocate(Uniform(), prediction, 24, low=[3, 10, 3]).tolist() == [7, 10, 7]


def test_inverse_accuracy_by_hand():
    prediction = Prediction.point([0.0, 0.5, 1.0])
    policy = InverseAccuracy(epsilon=0.5)  # weights 1.5, 1, .5
    assert allocate(policy, prediction, 30).tolist() == [15, 10, 5]
    assert allocate(policy, prediction, 30, high=12).tolist() == [12, 12, 6], "cut off at the bound, the rest 2 : 1"


def test_leftovers_follow_algorithm_2():
    """13.8 + 9.2 + 7: floors 13, 9, 7; the last rollout goes to the largest decrease of a f, here p = .5."""
    prediction = Prediction.point([0.0, 0.5, 1.0])
    assert allocate(InverseAccuracy(epsilon=0.5), prediction, 30, low=7).tolist() == [13, 10, 7]


def test_inverse_variance_by_hand():
    prediction = Prediction.point([0.0, 0.5])
    sizes = allocate(InverseVariance(epsilon=0.25), prediction, 30)  # weights 4, 2
    assert sizes.tolist() == [20, 10]


@pytest.mark.parametrize("policy", [InverseAccuracy, InverseVariance])
@pytest.mark.parametrize("epsilon", [0.0, -1.0, np.nan, np.inf])
def test_epsilon_must_be_positive(policy, epsilon):
    with pytest.raises(InvalidInputError, match="epsilon > 0"):
        policy(epsilon=epsilon)


def test_knapsack_rl_maximises_its_own_objective():
    for seed in range(40):
        rng = np.random.default_rng(seed)
        p = rng.random(4) if seed % 2 else rng.choice([0.0, 0.1, 0.5, 0.9, 1.0], 4)
        budget = int(rng.integers(12, 33))

        def value(n, p=p):
            return ((1 - p**n - (1 - p) ** n) * p * (1 - p) ** 2).sum()

        best = max(value(np.array(n)) for n in itertools.product(range(3, 9), repeat=4) if sum(n) == budget)
        assert value(allocate(KnapsackRL(), Prediction.point(p), budget, high=8)) == pytest.approx(best, rel=1e-12)


def test_knapsack_rl_prefers_hard_prompts_to_equally_uncertain_easy_ones():
    sizes = allocate(KnapsackRL(), Prediction.point([0.9, 0.1, 0.0]), 40)
    assert sizes[1] > sizes[0] + 5 and sizes[2] == 3


def test_vip_is_the_exact_solver():
    prediction = Prediction.beta([1.0, 0.3, 5.0, 2.0], [1.0, 3.0, 0.4, 2.0])
    for model in (RLOO(), DrGRPO(), GRPO()):
        expected = solve_allocation(model, prediction, 40, 3, 32, scale=[1.0, 2.0, 3.0, 0.5])
        got = allocate(VIP(), prediction, 40, model=model, scale=[1.0, 2.0, 3.0, 0.5])
        assert np.array_equal(got, expected)


@pytest.mark.parametrize("model", [RLOO(), DrGRPO()], ids=repr)
def test_no_policy_beats_vip_on_its_objective(model):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        prediction = Prediction.beta(rng.gamma(1.0, 2.0, 30) + 0.05, rng.gamma(1.0, 2.0, 30) + 0.05)
        best = objective(model, prediction, allocate(VIP(), prediction, 240, model=model))
        for policy in (entry.load() for entry in registry.entries("policy")):
            value = objective(model, prediction, allocate(policy(), prediction, 240, model=model))
            assert value >= best * (1 - 1e-12), policy.name


def test_relaxed_is_close_to_exact_but_only_for_convex_models():
    rng = np.random.default_rng(0)
    prediction = Prediction.beta(rng.random(100) + 0.1, rng.random(100) + 0.1)
    relaxed, exact = (objective(RLOO(), prediction, allocate(p, prediction, 800)) for p in (Relaxed(), VIP()))
    assert exact <= relaxed <= exact * 1.001
    with pytest.raises(InvalidInputError, match="size_at_slope"):
        allocate(Relaxed(), prediction, 800, model=GRPO())
