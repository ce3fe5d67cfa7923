"""Plans: weights, metrics, explanations."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats

import viprl
from viprl.errors import InvalidInputError


@pytest.fixture
def plan() -> viprl.Plan:
    predictor = viprl.DiscountedBeta()
    predictor.observe(["easy", "half", "hard"], [16, 8, 0], [16, 16, 16])
    allocator = viprl.RolloutAllocator(predictor, viprl.RLOO(), min_group_size=3, max_group_size=16)
    return allocator.allocate(["easy", "half", "new", "hard"], 32)


def test_advantages_are_the_plans_own_and_weigh_prompts_equally(plan: viprl.Plan) -> None:
    rewards = np.random.default_rng(0).normal(size=32)
    expected = viprl.group_advantages(rewards, plan, "rloo", prompt_weighting="equal")
    np.testing.assert_array_equal(plan.advantages(rewards), expected)
    plain = plan.advantages(rewards, prompt_weighting="rollout")
    np.testing.assert_array_equal(plain, viprl.group_advantages(rewards, plan, "rloo"))
    np.testing.assert_allclose(expected, plain * (32 / 4) / plan.group_sizes[plan.rows()])
    with pytest.raises(InvalidInputError, match="prompt_weighting"):
        plan.advantages(rewards, prompt_weighting="both")


def test_advantages_know_the_constant_beside_the_standard_deviation() -> None:
    allocator = viprl.RolloutAllocator(viprl.DiscountedBeta(), viprl.GRPO(epsilon=0.5))
    plan = allocator.allocate(["a", "b"], 8)
    rewards = [[1, 0, 0, 0], [1, 1, None, 0]]
    expected = viprl.group_advantages(rewards, plan, "grpo", epsilon=0.5, prompt_weighting="equal")
    np.testing.assert_array_equal(plan.advantages(rewards), expected)
    learned = viprl.RolloutAllocator(viprl.DiscountedBeta(), viprl.OutcomeMoments(estimator="dr_grpo"))
    assert learned.allocate(["a", "b"], 8).estimator == "dr_grpo"


def test_predicted_ratio_is_the_models(plan: viprl.Plan) -> None:
    spread = plan.prediction.bernoulli_variance
    ours, uniform = (spread / (plan.group_sizes - 1)).sum(), (spread / 7).sum()
    assert plan.metrics()["viprl/variance_ratio"] == pytest.approx(ours / uniform)


def test_dead_groups_are_the_beta_binomials() -> None:
    n = np.array([3, 8, 20])
    a, b = np.array([0.3, 2.0, 9.0]), np.array([0.45, 5.0, 1.5])
    plan = viprl.RolloutAllocator(viprl.DiscountedBeta(), viprl.RLOO()).allocate(["a", "b", "c"], 31)
    plan = dataclasses.replace(plan, group_sizes=n, prediction=viprl.Prediction.beta(a, b))
    expected = sum(stats.betabinom(m, x, y).pmf([0, m]).sum() for m, x, y in zip(n, a, b, strict=True))
    assert plan.dead_groups() == pytest.approx(expected, rel=1e-9)


def test_plans_are_frozen(plan: viprl.Plan) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.budget = 3  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        plan.group_sizes[0] = 9


def test_explanations_name_numbers_and_reasons(plan: viprl.Plan) -> None:
    sizes = dict(plan)
    for prompt_id, n in sizes.items():
        assert f"{prompt_id}: {n} rollouts (uniform: 8; bounds [3, 16])" in plan.explain(str(prompt_id))
    assert "no rollouts of its own seen yet" in plan.explain("new")
    assert "with history of its own" in plan.explain("half")
    assert "rank 1 of 4" in plan.explain("half")
    with pytest.raises(InvalidInputError, match="'other' is not among"):
        plan.explain("other")
    assert [row["group_size"] for row in plan.to_rows()] == plan.group_sizes.tolist()


def test_optimal_plans_equalise_marginal_gains(plan: viprl.Plan) -> None:
    rows = plan.to_rows()
    inner = [r for r in rows if 3 < r["group_size"] < 16]
    spread = plan.prediction.bernoulli_variance
    for row in inner:
        q = [r["prompt_id"] for r in rows].index(row["prompt_id"])
        n = row["group_size"]
        last_gain = spread[q] * (1 / (n - 2) - 1 / (n - 1))
        assert all(last_gain >= other["next_rollout_gain"] - 1e-12 for other in inner)
