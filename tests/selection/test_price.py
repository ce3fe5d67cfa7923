"""The decision problem, against dynamic programming over every candidate and size."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viprl.errors import InfeasibleBudgetError, InvalidInputError
from viprl.selection import SaturatingValue, decide, fill

SATURATION = st.sampled_from([0.01, 0.1, 0.5, 2.0, 10.0])
SLOPE = st.one_of(st.sampled_from([0.0, 0.05, 0.25]), st.floats(0, 0.25))


def optimum(value: SaturatingValue, budget: int, lower: int, upper: int) -> float:
    """The best sum of values by dynamic programming; minus infinity where no sizes fit."""
    best = np.full(budget + 1, -np.inf)
    best[0] = 0.0
    for q in range(len(value)):
        after = best.copy()
        for n in range(lower, min(upper, budget) + 1):
            after[n:] = np.maximum(after[n:], best[: budget + 1 - n] + float(value[q : q + 1].at(n)[0]))
        best = after
    return float(best[budget])


@st.composite
def problems(draw: st.DrawFn, common: bool) -> tuple[SaturatingValue, int, int, int]:
    slopes = np.array(draw(st.lists(SLOPE, min_size=1, max_size=8)))
    lower = draw(st.integers(1, 5))
    upper = lower + draw(st.integers(0, 7))
    saturation = draw(SATURATION) if common else draw(st.lists(SATURATION, min_size=len(slopes), max_size=len(slopes)))
    budget = draw(st.integers(1, len(slopes) * upper))
    return SaturatingValue(slopes, np.broadcast_to(np.array(saturation), slopes.shape)), budget, lower, upper


@settings(max_examples=300, deadline=None)
@given(st.booleans().flatmap(lambda common: problems(common)))
def test_against_dynamic_programming(problem: tuple[SaturatingValue, int, int, int]) -> None:
    value, budget, lower, upper = problem
    best = optimum(*problem)
    if best == -np.inf:
        with pytest.raises(InfeasibleBudgetError, match="must exist"):
            decide(*problem)
        return
    decision = decide(*problem)
    sizes = decision.sizes
    assert sizes.sum() == budget
    assert ((sizes == 0) | ((sizes >= lower) & (sizes <= upper))).all()
    assert decision.value == pytest.approx(float(value.at(sizes).sum()), abs=1e-12)
    assert decision.value <= best + 1e-9 <= decision.bound + 2e-9
    if value.saturation.min() == value.saturation.max():
        assert decision.value == pytest.approx(best, abs=1e-9)
        assert decision.bound == decision.value


def test_large_instances_are_solved_within_a_thousandth() -> None:
    rng = np.random.default_rng(0)
    p = rng.beta(0.3, 0.5, 2048)
    value = SaturatingValue.of(p * (1 - p), (p * (1 - p)) ** 2, 1.0)
    decision = decide(value, 4096, 3, 32)
    assert decision.bound - decision.value <= 1e-3 * decision.value
    assert decision.value > value.at(fill(value, 3 * 2048, 3, 32)).sum() * 4096 / (3 * 2048)


def test_a_million_candidates_in_a_third_of_a_second() -> None:
    p = np.random.default_rng(0).beta(0.3, 0.5, 1_000_000)
    value = SaturatingValue.of(p * (1 - p), (p * (1 - p)) ** 2, 1.0)
    start = time.process_time()
    decide(value, 4096, 3, 32)
    assert time.process_time() - start < 0.3


def test_the_better_prompts_are_kept_and_ties_go_to_the_earlier() -> None:
    value = SaturatingValue(np.array([0.01, 0.2, 0.1, 0.2, 0.1]), np.full(5, 0.25))
    assert decide(value, 9, 3, 3).sizes.tolist() == [0, 3, 3, 3, 0]


def test_between_prompt_noise_decides_on_few_or_many_prompts() -> None:
    slope = np.full(64, 0.2)
    many, few = (decide(SaturatingValue(slope, np.full(64, r)), 64, 2, 32).sizes for r in (1.0, 1.0 / 49))
    assert np.count_nonzero(many) == 32 and many.max() == 2  # 1 + 1/sqrt(r) = 2
    assert np.count_nonzero(few) == 8 and few.max() == 8


def test_where_nothing_is_worth_anything_the_earlier_get_equal_groups() -> None:
    decision = decide(SaturatingValue(np.zeros(4), np.ones(4)), 8, 3, 5)
    assert decision.value == 0.0 and decision.sizes.sum() == 8
    assert decision.sizes[decision.sizes > 0].min() >= 3


def test_fill_takes_the_largest_gains() -> None:
    value = SaturatingValue(np.array([0.2, 0.05, 0.0]), np.array([0.1, 0.1, 0.1]))
    assert fill(value, 14, 3, 8).tolist() == [8, 3, 3]
    with pytest.raises(InfeasibleBudgetError, match="min_group_size"):
        fill(value, 8, 3, 8)


def test_bounds_out_of_order_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="min_group_size <= max_group_size"):
        decide(SaturatingValue(np.ones(2), np.ones(2)), 8, 4, 3)


def test_the_bound_holds_where_candidates_left_out_are_worth_more_than_the_price() -> None:
    """With saturations of their own, those behind the prefix may have the higher break prices."""
    slopes, saturation = [0.0, 0.1, 0.25, 0.05, 0.25], [0.0039, 0.2064, 0.9781, 0.0109, 0.9248]
    problem = SaturatingValue(np.array(slopes), np.array(saturation)), 10, 4, 7
    best = optimum(*problem)
    decision = decide(*problem)
    assert best == pytest.approx(0.44477, abs=1e-5)
    assert decision.value <= best <= decision.bound
