"""Exactness: against enumeration, a plain dynamic programme, a heap, the relaxation and scipy."""

from __future__ import annotations

import time

import numpy as np
import pytest
from oracles import curve_table, enumerate_all, full_table, greedy_heap
from scipy import optimize

from viprl.allocation import objective, round_sizes, solve_allocation, solve_relaxation, solve_with_bound
from viprl.allocation.problem import AllocationProblem
from viprl.prediction.base import Prediction
from viprl.variance import GRPO, RLOO, BiasWarning, DrGRPO

pytestmark = pytest.mark.filterwarnings("ignore::viprl.variance.BiasWarning")

ESTIMATORS = [RLOO(), DrGRPO(), GRPO(), GRPO(ddof=0, epsilon=0.2)]
TIED = np.array([0.0, 0.0, 0.1, 0.25, 0.5, 0.5, 0.75, 0.9, 1.0])


def random_prediction(rng, batch):
    kind = rng.integers(3)
    if kind == 0:
        return Prediction.beta(rng.gamma(1.0, 2.0, batch) + 0.05, rng.gamma(1.0, 2.0, batch) + 0.05)
    return Prediction.point(rng.choice(TIED, batch) if kind == 1 else rng.beta(0.4, 0.5, batch))


def random_problem(rng, model, *, batch, smallest, spread, cost):
    prediction = random_prediction(rng, batch)
    lower = rng.integers(smallest, smallest + 4, batch)
    upper = lower + rng.integers(0, spread + 1, batch)
    scale = rng.gamma(1.0, 1.0, batch) if rng.random() < 0.3 else None
    if not cost:
        return prediction, int(rng.integers(lower.sum(), upper.sum() + 1)), lower, upper, scale, None
    price = rng.integers(1, 9, batch)
    budget = int(rng.integers((price * lower).sum(), (price * upper).sum() + 3))
    return prediction, budget, lower, upper, scale, price


def assert_optimal(model, problem, best):
    prediction, budget, lower, upper, scale, cost = problem
    sizes = solve_allocation(model, prediction, budget, lower, upper, scale, cost)
    assert sizes.dtype == np.int64
    assert (sizes >= lower).all() and (sizes <= upper).all()
    assert sizes.sum() == budget if cost is None else (cost * sizes).sum() <= budget
    value = objective(model, prediction, sizes, scale)
    assert value == pytest.approx(best, rel=1e-11, abs=1e-14)


@pytest.mark.parametrize("model", ESTIMATORS, ids=repr)
@pytest.mark.parametrize("cost", [False, True], ids=["rollouts", "costs"])
@pytest.mark.parametrize("seeds", [range(300), pytest.param(range(300, 1500), marks=pytest.mark.slow)], ids=str)
def test_equals_enumeration_on_thousands_of_small_problems(model, cost, seeds):
    """4 estimators x 2 x 300 (1,500) problems, per-prompt bounds, L from 1 (RLOO, infinite at 1, from 2)."""
    smallest = 2 if model.name == "rloo" else 1
    for seed in seeds:
        rng = np.random.default_rng(seed)
        problem = random_problem(
            rng, model, batch=int(rng.integers(1, 5)), smallest=smallest, spread=int(rng.integers(0, 6)), cost=cost
        )
        prediction, budget, lower, upper, scale, price = problem
        table = curve_table(model, prediction, int(upper.max()), scale)
        assert_optimal(model, problem, enumerate_all(table, budget, lower, upper, price))


@pytest.mark.parametrize("model", ESTIMATORS, ids=repr)
@pytest.mark.parametrize("cost", [False, True], ids=["rollouts", "costs"])
def test_equals_a_plain_dynamic_programme_on_medium_problems(model, cost):
    for seed in range(25):
        rng = np.random.default_rng(seed)
        problem = random_problem(rng, model, batch=int(rng.integers(10, 41)), smallest=2, spread=28, cost=cost)
        prediction, budget, lower, upper, scale, price = problem
        best = full_table(curve_table(model, prediction, int(upper.max()), scale), budget, lower, upper, price)
        assert_optimal(model, problem, best[budget] if price is None else best.min())


@pytest.mark.parametrize("model", [DrGRPO(), GRPO()], ids=repr)
def test_non_convex_from_one_with_common_bounds(model):
    for seed in range(25):
        rng = np.random.default_rng(seed)
        prediction = random_prediction(rng, 30)
        lower, upper = np.full(30, 1), np.full(30, 32)
        best = full_table(curve_table(model, prediction, 32), 240, lower, upper)[240]
        assert_optimal(model, (prediction, 240, lower, upper, None, None), best)


@pytest.mark.slow
@pytest.mark.parametrize("model", [DrGRPO(), GRPO(), RLOO()], ids=repr)
def test_equals_a_plain_dynamic_programme_on_larger_problems(model):
    """200 prompts: the Lagrangian reduction leaves out most of the table here."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        prediction = Prediction.point(rng.choice(TIED, 200) if seed % 2 else rng.beta(0.4, 0.5, 200))
        smallest = 2 if model.name == "rloo" else 1
        lower, upper = np.full(200, smallest), np.full(200, 32)
        cost = rng.integers(1, 30, 200) if seed > 1 or model.name == "rloo" else None
        budget = 1600 if cost is None else int(8 * cost.sum())
        best = full_table(curve_table(model, prediction, 32), budget, lower, upper, cost)
        problem = (prediction, budget, lower, upper, None, cost)
        assert_optimal(model, problem, best[budget] if cost is None else best.min())


def test_of_prompts_with_equal_curves_the_earlier_gets_more():
    rng = np.random.default_rng(4)
    p = rng.choice([0.1, 0.2, 0.5], 30)
    for model in (DrGRPO(), GRPO()):
        sizes = solve_allocation(model, Prediction.point(p), 200, 1, 32)
        assert all((np.diff(sizes[p == value]) <= 0).all() for value in np.unique(p))


def test_dr_grpo_starves_prompts_from_one():
    with pytest.warns(BiasWarning):
        sizes = solve_allocation(DrGRPO(), [0.25, 0.25, 0.01, 0.01], 16, 1, 8)
    assert sizes.tolist() == [1, 1, 7, 7]
    assert solve_allocation(DrGRPO(), [0.25, 0.25, 0.01, 0.01], 16, 3, 8).tolist() == [5, 5, 3, 3]


@pytest.mark.parametrize("model", [RLOO(), DrGRPO()], ids=repr)
@pytest.mark.parametrize("batch", [1, 7, 60, 3_000, pytest.param(40_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("common", [True, False], ids=["common bounds", "own bounds"])
def test_identical_to_a_heap(model, batch, common):
    """Rollout for rollout, ties included, on both sides of the limit between the two methods."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        p = rng.beta(0.4, 0.5, batch) if seed else rng.choice([0.1, 0.25, 0.5, 0.75], batch)
        lower = np.full(batch, 3) if common else rng.integers(3, 7, batch)
        upper = np.full(batch, 32) if common else lower + rng.integers(0, 40, batch)
        budget = int(lower.sum() + 0.3 * (upper - lower).sum())
        expected = greedy_heap(p * (1 - p), model.marginal_gain, budget, lower, upper)
        assert np.array_equal(solve_allocation(model, p * (1 - p), budget, lower, upper), expected)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999, 1.0])
def test_many_prompts_with_extreme_weights(share):
    """Weights over hundreds of orders of magnitude, zeros and ties, where float32 bins degenerate."""
    rng = np.random.default_rng(3)
    weight = 10.0 ** rng.uniform(-200, 3, 8_000)
    weight[::7] = 0.0
    weight[1::5] = 0.25
    lower, upper = np.full(8_000, 3), np.full(8_000, 20)
    positive = int((weight > 0).sum())
    budget = 24_000 + int(share * 17 * positive)
    sizes = solve_allocation(RLOO(), weight, budget, 3, 20)
    assert np.array_equal(sizes, greedy_heap(weight, RLOO().marginal_gain, budget, lower, upper))
    assert (sizes[weight == 0] == 3).all()


def test_useless_rollouts_are_spread_over_many_prompts():
    weight = np.zeros(20_000)
    weight[5_000:] = 0.25
    budget = 15_000 * 9 + 5_000 * 4 + 11
    sizes = solve_allocation(RLOO(), weight, budget, 3, 9)
    assert (sizes[5_000:] == 9).all() and sizes.sum() == budget
    assert (sizes[:11] == 5).all() and (sizes[11:5_000] == 4).all()


@pytest.mark.parametrize("model", [RLOO(), DrGRPO()], ids=repr)
def test_between_the_relaxation_and_its_rounding(model):
    for seed in range(60):
        rng = np.random.default_rng(seed)
        prediction, budget, lower, upper, scale, _ = random_problem(
            rng, model, batch=int(rng.integers(1, 60)), smallest=3, spread=30, cost=False
        )
        relaxed = solve_relaxation(model, prediction, budget, lower, upper, scale)
        assert relaxed.sizes.sum() == pytest.approx(budget, abs=1e-6)
        problem = AllocationProblem.build(len(lower), budget, lower, upper, scale)
        rounded = round_sizes(model, prediction, relaxed.sizes, problem)
        exact = objective(model, prediction, solve_allocation(model, prediction, budget, lower, upper, scale), scale)
        assert exact <= objective(model, prediction, rounded, scale) * (1 + 1e-12)
        assert exact >= relaxed.lower_bound * (1 - 1e-9) - 1e-15
        continuous = objective(model, prediction, relaxed.sizes, scale)
        assert relaxed.lower_bound == pytest.approx(continuous, rel=1e-6, abs=1e-12), "no duality gap"


@pytest.mark.parametrize("model", [RLOO(), DrGRPO()], ids=repr)
def test_relaxation_agrees_with_scipy(model):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        weight, budget = rng.random(8) * 0.25, int(rng.integers(30, 90))
        relaxed = solve_relaxation(model, weight, budget, 3, 16)
        found = optimize.minimize(
            lambda n, w=weight: (w * model.factor(n)).sum() * 100,
            np.full(8, budget / 8),
            method="SLSQP",
            bounds=[(3, 16)] * 8,
            constraints={"type": "eq", "fun": lambda n, c=budget: n.sum() - c},
            options={"ftol": 1e-14, "maxiter": 1000},
        )
        assert found.success
        assert objective(model, weight, relaxed.sizes) * 100 <= found.fun * (1 + 1e-7)
        assert np.allclose(relaxed.sizes, found.x, atol=0.02)


@pytest.mark.parametrize("model", ESTIMATORS, ids=repr)
def test_certificates(model):
    rng = np.random.default_rng(0)
    prediction = random_prediction(rng, 64)
    solution = solve_with_bound(model, prediction, 512, 3, 32)
    assert solution.exact and solution.lower_bound == solution.objective
    assert solution.objective == pytest.approx(objective(model, prediction, solution.group_sizes), rel=1e-12)


def test_too_large_a_table_gives_a_bound_and_says_so(monkeypatch):
    from viprl.allocation import InexactAllocationWarning, dynamic

    rng = np.random.default_rng(1)
    prediction, cost = Prediction.point(rng.beta(0.4, 0.5, 300)), rng.integers(100, 4_000, 300)
    arguments = (RLOO(), prediction, int(8 * cost.sum()), 3, 32, None, cost)
    exact = solve_with_bound(*arguments)
    monkeypatch.setattr(dynamic, "CELL_LIMIT", 1_000)
    rough = solve_with_bound(*arguments)
    assert exact.exact and not rough.exact
    assert rough.lower_bound <= exact.objective <= rough.objective <= rough.lower_bound * 1.01
    assert (cost * rough.group_sizes).sum() <= arguments[2]
    with pytest.warns(InexactAllocationWarning, match="cannot be below"):
        solve_allocation(*arguments)


def test_equal_costs_are_the_same_problem():
    rng = np.random.default_rng(2)
    weight = rng.random(50)
    plain = solve_allocation(RLOO(), weight, 400, 3, 32)
    priced = solve_allocation(RLOO(), weight, 400 * 7 + 6, 3, 32, cost=np.full(50, 7))
    assert objective(RLOO(), weight, plain) == pytest.approx(objective(RLOO(), weight, priced), rel=1e-12)


@pytest.mark.slow
def test_speed():
    """CPU seconds of the whole call, so that a busy machine does not matter."""
    rng = np.random.default_rng(0)
    for batch, limit, repeats in ((512, 0.001, 101), (1_000_000, 0.15, 5)):
        p = rng.beta(0.4, 0.5, batch)
        seconds = []
        for _ in range(repeats):
            start = time.process_time()
            solve_allocation(RLOO(), p * (1 - p), 8 * batch, 3, 32)
            seconds.append(time.process_time() - start)
        assert np.median(seconds) <= limit
