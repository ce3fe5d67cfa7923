"""The forecast against known distributions and direct simulation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from viprl.errors import ConfigurationError, InfeasibleBudgetError, InvalidInputError
from viprl.prompts import PromptSet, content_hash
from viprl.replay.forecast import forecast, forecast_lines
from viprl.replay.rates import Rates, estimate_distribution, rollouts_behind
from viprl.replay.readers import LogFormatError, ReadReport, read_rates
from viprl.replay.rules import formula
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
    from viprl.replay import PromptPool, Setting, replay
    from viprl.replay.lineup import build_rule, parse_rule

    p = np.random.default_rng(3).beta(0.4, 0.5, 2048)
    result = forecast(rates(p), 1024, RLOO(), batch=128)
    gain = next(b for b in result.bounds if (b.lower, b.upper) == (3, 32))
    pool = PromptPool([f"q{q}" for q in range(2048)], p, batch=128)
    setting = Setting(RLOO(), 3, 32)
    trace = replay(pool, build_rule(parse_rule("vip:beta"), PromptSet(pool.prompt_ids), setting, 0), setting)
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


def table(tmp_path, rows, header="prompt_id,success_rate"):
    (tmp_path / "rates.csv").write_text("\n".join([header, *rows]) + "\n")
    return tmp_path / "rates.csv"


def read(path, **options):
    report = ReadReport("rates")
    return read_rates(path, report, **options), " ".join(report.notices)


@pytest.mark.parametrize("form", ["{:.17g}", "{:.3f}", "{:.2f}"])
def test_rates_of_few_rollouts_forecast_as_their_counts_do(tmp_path, form):
    """All prompts alike at .18, eight rollouts each: the rates differ by chance alone."""
    k = np.random.default_rng(0).binomial(8, 0.18, 600)
    path = table(tmp_path, [f"q{q},{form.format(c / 8)}" for q, c in enumerate(k)])
    found, said = read(path)
    assert "GRID k/8" in said and found.rollouts.tolist() == [8] * 600
    result = forecast(found, 512, RLOO(), batch=64)
    assert result.gain.oracle > 0.97 and result.dead_share == pytest.approx(0.82**8 + 0.18**8, abs=0.03)
    assert forecast(Rates(found.prompt_ids, k / 8, None), 512, RLOO(), batch=64).gain.oracle < 0.9  # taken as exact
    declared, _ = read(path, rollouts=8)
    assert declared.rate.tolist() == found.rate.tolist()


def test_a_row_a_rollout_is_counted(tmp_path):
    rng = np.random.default_rng(1)
    hits = rng.random((300, 8)) < 0.18
    rows = [f"q{q},{int(hit)}" for q in range(300) for hit in hits[q]]
    for header in ("prompt_id,success_rate", "prompt_id,reward"):
        found, _ = read(table(tmp_path, rows, header))
        assert found.rollouts.tolist() == [8] * 300 and found.rate.tolist() == hits.mean(axis=1).tolist()
    path = tmp_path / "scores.jsonl"
    path.write_text(
        "".join(f'{{"prompt": "p{q}", "response": "r", "score": {float(h)}}}\n' for q in "ab" for h in (0, 1))
    )
    with pytest.raises(LogFormatError, match="--columns reward=score"):
        read(path)
    found, _ = read(path, columns={"reward": "score"})
    assert found.rollouts.tolist() == [2, 2] and found.prompt_ids == (content_hash("pa"), content_hash("pb"))


def test_exact_rates_and_wrong_counts_are_said(tmp_path):
    p = np.random.default_rng(2).random(50)
    path = table(tmp_path, [f"q{q},{value:.6f}" for q, value in enumerate(p)])
    found, said = read(path)
    assert found.rollouts is None and "TAKEN AS EXACT" in said and "--rollouts N" in said
    with pytest.raises(LogFormatError, match="must be one of 0/4, 1/4"):
        read(path, rollouts=4)
    with pytest.raises(ConfigurationError, match="rollouts >= 1"):
        read(path, rollouts=0)
    counted = table(tmp_path, ["a,1,4"], "prompt_id,successes,n_rollouts")
    with pytest.raises(ConfigurationError, match="counts of its own"):
        read(counted, rollouts=4)


def test_percentages_are_recognised_and_said(tmp_path):
    found, said = read(table(tmp_path, ["a,87.5", "b,0", "c,12.5", "d,100"]))
    assert "percentages" in said and found.rate.tolist() == [0.875, 0, 0.125, 1] and found.rollouts.tolist() == [8] * 4


@pytest.mark.parametrize("n", [3, 5, 8, 10, 16, 24, 64])
def test_the_grid_of_rates_is_found(n):
    rate = np.random.default_rng(n).binomial(n, np.random.default_rng(1).random(400), 400) / n
    assert rollouts_behind(rate) == n and rollouts_behind(np.round(rate, 6)) == n
    if n <= 16:
        assert rollouts_behind(np.round(rate, 3)) == n
    assert rollouts_behind(np.random.default_rng(n).random(400)) is None


def rates_of(name, rng):
    """Rates of prompts that are all alike, p = .18, from different numbers of rollouts; or rounded away."""
    n = {
        "7 and 8": np.where(rng.random(1000) < 0.1, 7, 8),
        "4, 8 and 16": rng.choice([4, 8, 16], 1000),
        "5 to 8": rng.integers(5, 9, 1000),
        "3, one decimal": np.full(1000, 3),
    }[name]
    rate = rng.binomial(n, 0.18) / n
    return np.round(rate, 1) if "decimal" in name else rate


@pytest.mark.parametrize("name", ["7 and 8", "4, 8 and 16", "5 to 8", "3, one decimal"])
def test_rates_that_no_one_number_of_rollouts_explains_are_refused(name, tmp_path):
    path = table(tmp_path, [f"q{q},{value:.17g}" for q, value in enumerate(rates_of(name, np.random.default_rng(5)))])
    with pytest.raises(LogFormatError, match="give the columns successes and n_rollouts"):
        read(path)
    assert read(path, rollouts=1000 if "decimal" in name else 5040)[0].rollouts is not None


def test_one_odd_rate_hides_no_grid(tmp_path):
    rate = np.random.default_rng(6).binomial(8, 0.18, 500) / 8
    rate[0] = 0.1234567
    found, said = read(table(tmp_path, [f"q{q},{value:.17g}" for q, value in enumerate(rate)]))
    assert "GRID k/8" in said and set(found.rollouts) == {8}


def test_one_rollout_a_prompt_tells_nothing_and_three_little(tmp_path):
    rng = np.random.default_rng(7)
    with pytest.raises(LogFormatError, match="two rollouts or more"):
        read(table(tmp_path, [f"q{q},{int(rng.random() < 0.5)}" for q in range(100)], "prompt_id,reward"))
    _, said = read(table(tmp_path, [f"q{q},{rng.binomial(3, 0.5) / 3:.17g}" for q in range(200)]))
    assert "MOST PROMPTS HAVE 3 ROLLOUTS" in said


def test_a_pool_of_few_rollouts_is_as_spread_as_its_prompts():
    p = np.random.default_rng(3).beta(2, 2, 3000)
    found = rates(p, n=4)
    assert found.rate.var() > 1.5 * p.var()
    drawn = found.probabilities()
    assert drawn.var() == pytest.approx(p.var(), rel=0.12) and drawn.mean() == pytest.approx(p.mean(), abs=0.01)
    assert np.corrcoef(drawn, p)[0, 1] > 0.3 and drawn.tolist() == found.probabilities().tolist()
    many = rates(p, n=128)
    assert many.probabilities() == pytest.approx((many.rate * 128 + 0.25) / 128.5)


@pytest.mark.parametrize("estimator", ["rloo", "dr_grpo", "grpo"])
def test_every_estimator_has_a_forecast(estimator):
    p = np.random.default_rng(4).beta(0.4, 0.5, 400)
    assert forecast(rates(p), 512, formula(estimator), batch=64).gain.oracle < 0.9
