"""The forecast against known distributions and direct simulation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from viprl.errors import InfeasibleBudgetError, InvalidInputError
from viprl.replay.forecast import estimate_distribution, forecast
from viprl.replay.forecast_words import forecast_lines
from viprl.replay.readers import Rates
from viprl.variance import RLOO, DrGRPO


def rates(p, n=None, seed=0):
    p = np.asarray(p, dtype=float)
    ids = tuple(f"q{q}" for q in range(len(p)))
    if n is None:
        return Rates(ids, p, None)
    counts = np.full(len(p), n)
    return Rates(ids, np.random.default_rng(seed).binomial(counts, p) / counts, counts)


@pytest.mark.parametrize(("a", "b"), [(0.4, 0.5), (2.0, 2.0)])
def test_the_distribution_is_recovered_from_few_rollouts(a, b):
    p = np.random.default_rng(1).beta(a, b, 6000)
    grid, weights = estimate_distribution(rates(p, n=8))
    assert weights.sum() == pytest.approx(1) and weights.min() >= 0
    assert weights @ grid == pytest.approx(p.mean(), abs=0.01)
    assert weights @ (grid * (1 - grid)) == pytest.approx((p * (1 - p)).mean(), abs=0.01)
    # the raw rates of 8 rollouts are far more spread than the probabilities
    raw = rates(p, n=8).rate
    assert abs((grid - weights @ grid) ** 2 @ weights - p.var()) < 0.35 * abs(raw.var() - p.var())


def test_rates_without_counts_are_taken_as_exact():
    grid, weights = estimate_distribution(rates([0.0, 0.5, 0.5, 1.0]))
    assert grid.tolist() == [0.0, 0.5, 1.0] and weights.tolist() == [0.25, 0.5, 0.25]


def test_dead_groups_are_the_binomial_formula():
    p = np.array([0.0, 0.1, 0.5, 1.0])
    result = forecast(rates(p), 320, RLOO(), batch=40)
    expected = np.mean(p**8 + (1 - p) ** 8)
    assert result.dead_share == pytest.approx(expected) and result.dead_groups == pytest.approx(40 * expected)
    assert result.always == 0.25 and result.never == 0.25
    assert [r.dead_uniform for r in result.budgets if r.group_size == 16] == pytest.approx(
        [np.mean(p**16 + (1 - p) ** 16)]
    )


def test_the_oracle_ratio_is_the_best_of_all_allocations():
    p = np.array([0.02, 0.5])  # a step is some of each; two prompts, 12 rollouts, enumerated
    result = forecast(rates(p), 12, RLOO(), batch=2)
    chosen = next(b for b in result.bounds if b.lower == 3 and b.upper == 9)
    a = p * (1 - p)

    def best(pair):
        return min(a[pair[0]] / (n - 1) + a[pair[1]] / (11 - n) for n in range(3, 10))

    pairs = list(itertools.product((0, 1), repeat=2))
    expected = np.mean([best(pair) for pair in pairs]) / np.mean([(a[i] + a[j]) / 5 for i, j in pairs])
    assert chosen.oracle == pytest.approx(expected, abs=0.02)


def test_more_knowledge_is_worth_more_and_wider_bounds_never_cost_the_oracle():
    p = np.random.default_rng(2).beta(0.4, 0.5, 800)
    result = forecast(rates(p, n=64), 1024, RLOO(), batch=128)
    for b in result.bounds:
        assert b.oracle <= b.fourth + 0.005 and b.fourth <= b.second + 0.005 and b.second < 1.0
    by_bounds = {(b.lower, b.upper): b.oracle for b in result.bounds}
    for (low, high), value in by_bounds.items():
        assert all(value <= v + 1e-9 for (other, top), v in by_bounds.items() if other >= low and top <= high)
    assert result.lower <= 8 <= result.upper and result.gain in result.bounds
    assert result.gain.fourth <= min(b.fourth for b in result.bounds) + 0.01
    variances = [r.variance for r in result.budgets]
    assert variances == sorted(variances, reverse=True)


def test_the_second_visit_agrees_with_a_replay_of_the_pool():
    from viprl.replay import PromptPool, Prompts, Setting, replay
    from viprl.replay.lineup import build_rule, parse_rule

    p = np.random.default_rng(3).beta(0.4, 0.5, 2048)
    result = forecast(rates(p), 1024, RLOO(), batch=128)
    gain = next(b for b in result.bounds if (b.lower, b.upper) == (3, 32))
    pool = PromptPool([f"q{q}" for q in range(2048)], p, batch=128)
    setting = Setting(RLOO(), 3, 32)
    trace = replay(pool, build_rule(parse_rule("vip:beta"), Prompts(pool.prompt_ids), setting, 0), setting)
    replayed = trace.column("variance", "epoch 2").sum() / trace.column("uniform", "epoch 2").sum()
    oracle = trace.column("best", "epoch 2").sum() / trace.column("uniform", "epoch 2").sum()
    assert gain.oracle == pytest.approx(oracle, abs=0.02)
    assert gain.second == pytest.approx(replayed, abs=0.03)


def test_alike_prompts_have_nothing_to_gain_and_dr_grpo_keeps_three():
    result = forecast(rates(np.full(50, 0.5)), 256, DrGRPO(), batch=32)
    assert result.gain.oracle == pytest.approx(1.0) and all(b.lower >= 3 for b in result.bounds)
    text = "\n".join(forecast_lines(result))
    assert "little to gain" in text and "recommended: L =" in text


def test_dead_prompts_only_do_not_break_it():
    result = forecast(rates(np.zeros(20)), 64, RLOO())
    assert result.batch == 8 and result.dead_share == 1.0 and result.gain.oracle == 1.0
    forecast_lines(result)


def test_impossible_budgets():
    for budget, batch in ((10, 6), (0, None), (4, -1)):
        with pytest.raises(InvalidInputError, match="budget >= 2"):
            forecast(rates([0.5]), budget, RLOO(), batch=batch)
    with pytest.raises(InfeasibleBudgetError, match="some bounds"):
        forecast(rates([0.5]), 20, DrGRPO(), batch=10)
