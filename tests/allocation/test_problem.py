"""Validation: every broken rule is named, with its numbers; degenerate problems have their one answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viprl.allocation import solve_allocation, solve_relaxation, water_fill
from viprl.allocation.problem import AllocationProblem
from viprl.errors import InfeasibleBudgetError, InvalidInputError
from viprl.prediction.base import Prediction
from viprl.variance import GRPO, RLOO, DrGRPO


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (11, "prompts=4, min_group_size=3, max_group_size=8, budget=11.*between 12 and 32 rollouts are possible"),
        (33, "prompts \\* min_group_size <= budget <= prompts \\* max_group_size.*budget=33"),
    ],
)
def test_infeasible_budgets_name_the_rule_and_the_numbers(budget, message):
    with pytest.raises(InfeasibleBudgetError, match=message):
        solve_allocation(RLOO(), np.full(4, 0.2), budget, 3, 8)


def test_infeasible_costs():
    with pytest.raises(InfeasibleBudgetError, match="sum of cost \\* min_group_size=60, budget=59"):
        solve_allocation(RLOO(), [0.1, 0.2], 59, 3, 8, cost=[10, 10])
    with pytest.raises(InfeasibleBudgetError, match="finite variance"):
        solve_allocation(RLOO(), [0.1, 0.2], 20, 1, 8, cost=[10, 10])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_group_size": 0}, "min_group_size >= 1 must hold, but got 0"),
        ({"min_group_size": 9}, "min_group_size=9, max_group_size=8.*prompt 0"),
        ({"min_group_size": [3, 3, 9]}, "for prompt 2"),
        ({"min_group_size": [3, 3]}, "length 3, but got length 2"),
        ({"min_group_size": 2.5}, "whole numbers"),
        ({"min_group_size": np.nan}, "whole numbers"),
        ({"max_group_size": "8"}, "whole numbers"),
        ({"budget": 15.5}, "whole numbers"),
        ({"budget": None}, "whole numbers"),
        ({"scale": [1.0, np.nan, 1.0]}, "`scale` must be finite and non-negative, but got 1 NaN"),
        ({"scale": [1.0, -1.0, 1.0]}, "minimum -1.0"),
        ({"scale": [1.0, 1.0]}, "shape"),
        ({"cost": [1, 0, 1]}, "cost >= 1"),
        ({"cost": [1, 0.5, 1]}, "whole numbers"),
    ],
)
def test_bad_arguments(arguments, message):
    defaults = {"budget": 15, "min_group_size": 3, "max_group_size": 8} | arguments
    with pytest.raises(InvalidInputError, match=message):
        solve_allocation(RLOO(), [0.1, 0.2, 0.2], **defaults)


@pytest.mark.parametrize("weights", [[0.1, np.nan], [0.1, -0.1], [0.1, np.inf], [[0.1, 0.2]]])
def test_bad_weights(weights):
    with pytest.raises(InvalidInputError):
        solve_allocation(RLOO(), weights, 8, 3, 8)


def test_curves_with_nan_are_errors():
    class Broken(GRPO):
        def curve(self, prediction, sizes):
            return np.full((len(prediction), len(sizes)), np.nan)

    with pytest.raises(InvalidInputError, match="NaN"):
        solve_allocation(Broken(), Prediction.point([0.1, 0.5]), 8, 3, 8)


@pytest.mark.parametrize("model", [RLOO(), DrGRPO(), GRPO()], ids=repr)
@pytest.mark.parametrize("batch", [5, 4_000])
def test_all_certain_is_as_equal_as_possible(model, batch):
    prediction = Prediction.point(np.arange(batch) % 2)
    assert solve_allocation(model, prediction, 5 * batch + 2, 3, 32).tolist() == [6, 6] + [5] * (batch - 2)
    lower = np.where(np.arange(batch) == 1, 9, 3)
    sizes = solve_allocation(model, prediction, 5 * batch, lower, 32)
    assert sizes.tolist() == water_fill(5 * batch, lower, np.full(batch, 32)).tolist() and sizes[1] == 9


@pytest.mark.parametrize("model", [RLOO(), DrGRPO(), GRPO()], ids=repr)
def test_only_one_choice(model):
    prediction = Prediction.beta([1.0, 2.0, 0.5], [1.0, 0.5, 3.0])
    assert solve_allocation(model, prediction, 9, 3, 8).tolist() == [3, 3, 3]
    assert solve_allocation(model, prediction, 24, 3, 8).tolist() == [8, 8, 8]
    assert solve_allocation(model, prediction, 15, [3, 7, 5], [3, 7, 5]).tolist() == [3, 7, 5]
    assert solve_allocation(model, prediction[:1], 5, 3, 8).tolist() == [5]
    assert solve_allocation(model, prediction[:0], 0, 3, 8).shape == (0,)
    with pytest.raises(InfeasibleBudgetError):
        solve_allocation(model, prediction[:0], 3, 3, 8)


def test_rloo_groups_of_one_are_the_last_resort():
    """Infinite variance: first as few such prompts as the budget allows, the largest weights served first."""
    weight = [0.1, 0.0, 0.2, 0.25]
    assert solve_allocation(RLOO(), weight, 4, 1, 8).tolist() == [1, 1, 1, 1]
    assert solve_allocation(RLOO(), weight, 6, 1, 8).tolist() == [1, 1, 2, 2]
    assert solve_allocation(RLOO(), weight, 7, 1, 8).tolist() == [2, 1, 2, 2]
    assert solve_allocation(RLOO(), weight, 9, 1, 8).tolist() == [2, 1, 3, 3]
    assert solve_allocation(RLOO(), weight, 5, 1, [1, 8, 8, 8]).tolist() == [1, 1, 1, 2]
    assert solve_allocation(RLOO(), [0.1, 0.2], 3, 1, 2).tolist() == [1, 2]


def test_ties_go_to_the_earlier_prompt():
    assert solve_allocation(RLOO(), np.full(4, 0.25), 18, 3, 8).tolist() == [5, 5, 4, 4]
    assert solve_allocation(DrGRPO(), np.full(3, 0.25), 10, 3, 8).tolist() == [4, 3, 3]


def test_scale_of_zero_is_a_prompt_that_does_not_matter():
    assert solve_allocation(RLOO(), [0.25, 0.25], 20, 3, 17, scale=[1.0, 0.0]).tolist() == [17, 3]
    sizes = solve_allocation(GRPO(), Prediction.point([0.5, 0.5]), 20, 3, 17, scale=[1.0, 0.0])
    assert sizes.tolist() == [17, 3]


def test_relaxation_errors_and_flat_problems():
    with pytest.raises(InvalidInputError, match="min_group_size=2"):
        solve_relaxation(DrGRPO(), [0.1, 0.2], 8, 2, 8)
    with pytest.raises(InvalidInputError, match="min_group_size=1"):
        solve_relaxation(RLOO(), [0.1, 0.2], 8, 1, 8)
    with pytest.raises(InvalidInputError, match="size_at_slope"):
        solve_relaxation(GRPO(), Prediction.point([0.1]), 8, 3, 8)
    flat = solve_relaxation(RLOO(), [0.0, 0.0], 9, 3, 8)
    assert flat.sizes.sum() == pytest.approx(9) and flat.lower_bound == 0.0
    rest = solve_relaxation(RLOO(), [0.2, 0.0, 0.0], 20, 3, 8)
    assert rest.sizes[0] == pytest.approx(8) and rest.sizes.sum() == pytest.approx(20)
    assert rest.lower_bound == pytest.approx(0.2 / 7)


@given(st.data())
def test_water_fill(data):
    batch = data.draw(st.integers(1, 12))
    lower = np.array(data.draw(st.lists(st.integers(1, 9), min_size=batch, max_size=batch)))
    upper = lower + np.array(data.draw(st.lists(st.integers(0, 9), min_size=batch, max_size=batch)))
    total = data.draw(st.integers(int(lower.sum()), int(upper.sum())))
    sizes = water_fill(total, lower, upper)
    assert sizes.sum() == total and (sizes >= lower).all() and (sizes <= upper).all()
    can_give, can_take = sizes > lower, sizes < upper
    if can_give.any() and can_take.any():
        assert sizes[can_give].max() <= sizes[can_take].min() + 1, "no move makes it more equal"


def test_problem_is_validated_once_and_copied():
    lower = np.full(3, 3)
    problem = AllocationProblem.build(3, 12, lower, 8)
    lower[:] = 9
    assert problem.lower.tolist() == [3, 3, 3] and problem.sizes.tolist() == list(range(3, 9))
