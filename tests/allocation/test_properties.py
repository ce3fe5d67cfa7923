"""Hypothesis: what holds for every problem."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viprl.allocation import objective, solve_allocation
from viprl.prediction.base import Prediction
from viprl.variance import GRPO, RLOO, DrGRPO

pytestmark = pytest.mark.filterwarnings("ignore::viprl.variance.BiasWarning")
MODELS = [(RLOO(), 2), (DrGRPO(), 3), (DrGRPO(), 1), (GRPO(), 1)]


@st.composite
def problems(draw, smallest=3):
    batch = draw(st.integers(1, 9))
    p = draw(st.lists(st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0])), min_size=batch, max_size=batch))
    lower = smallest + np.array(draw(st.lists(st.integers(0, 3), min_size=batch, max_size=batch)))
    upper = lower + np.array(draw(st.lists(st.integers(0, 12), min_size=batch, max_size=batch)))
    return Prediction.point(p), draw(st.integers(int(lower.sum()), int(upper.sum()))), lower, upper


@pytest.mark.parametrize(("model", "smallest"), MODELS, ids=str)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_solution(model, smallest, data):
    prediction, budget, lower, upper = data.draw(problems(smallest))
    arguments = (prediction.mean.copy(), lower.copy(), upper.copy())
    sizes = solve_allocation(model, prediction, budget, lower, upper)
    assert sizes.sum() == budget and (sizes >= lower).all() and (sizes <= upper).all()
    assert np.array_equal(sizes, solve_allocation(model, prediction, budget, lower, upper)), "pure"
    assert all(map(np.array_equal, arguments, (prediction.mean, lower, upper))), "arguments untouched"

    order = np.array(data.draw(st.permutations(range(len(sizes)))))
    there = solve_allocation(model, prediction[order], budget, lower[order], upper[order])
    here_value, there_value = objective(model, prediction, sizes), objective(model, prediction[order], there)
    assert here_value == pytest.approx(there_value, rel=1e-11, abs=1e-15), "permutation equivariant up to ties"

    scaled = solve_allocation(model, prediction, budget, lower, upper, scale=np.full(len(sizes), 4.0))
    assert np.array_equal(scaled, sizes), "a common scale changes nothing"

    if budget < upper.sum() and model.convex_from is not None and lower.min() >= model.convex_from:
        more = solve_allocation(model, prediction, budget + 1, lower, upper)
        assert (more >= sizes).all() and objective(model, prediction, more) <= here_value, "one more rollout helps"


@pytest.mark.parametrize("model", [RLOO(), DrGRPO()], ids=repr)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_larger_variance_never_gets_fewer_rollouts(model, data):
    prediction, budget, lower, upper = data.draw(problems())
    weight = np.asarray(prediction.bernoulli_variance).copy()
    before = solve_allocation(model, weight, budget, lower, upper)
    row = data.draw(st.integers(0, len(weight) - 1))
    weight[row] += data.draw(st.floats(0.01, 1.0))
    assert solve_allocation(model, weight, budget, lower, upper)[row] >= before[row]


@pytest.mark.parametrize("model", [RLOO(), DrGRPO()], ids=repr)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_under_common_bounds_sizes_follow_the_variances(model, data):
    prediction, _, _, _ = data.draw(problems())
    weight = prediction.bernoulli_variance
    budget = data.draw(st.integers(3 * len(weight), 12 * len(weight)))
    sizes = solve_allocation(model, weight, budget, 3, 12)
    order = np.argsort(weight, kind="stable")
    distinct = np.diff(weight[order]) > 1e-12 * weight.max()  # less than that, gains may round to a tie
    assert (np.diff(sizes[order])[distinct] >= 0).all()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_curves_are_between_zero_and_the_bound(data):
    """sum A^2 <= (n - ddof) makes (n-1)/n^2 an upper bound of GRPO's curve."""
    p = data.draw(st.lists(st.floats(0, 1), min_size=1, max_size=5))
    n = np.arange(1, data.draw(st.integers(2, 60)))
    curve = GRPO(epsilon=data.draw(st.floats(0, 2))).curve(Prediction.point(p), n)
    assert (curve >= 0).all() and (curve <= (n - 1) / n**2 + 1e-12).all()
