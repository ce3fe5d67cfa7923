"""Paired resampling: coverage, pairing, and words that keep to the interval."""

from __future__ import annotations

import numpy as np
import pytest

from viprl.evaluation import Interval
from viprl.replay import Setting
from viprl.replay.bootstrap import MOST_UNITS, PairedBootstrap, _block_weights, block_length
from viprl.replay.summary import equivalent_group_size, verdict
from viprl.variance import RLOO, DrGRPO


def test_every_resample_has_as_many_steps():
    weights = _block_weights(np.random.default_rng(0), 250, 300)
    assert weights.shape == (300, 250) and (weights.sum(axis=1) == 250).all()
    assert weights.mean(axis=0) == pytest.approx(1.0, abs=0.45)
    runs = (np.diff((weights > 0).astype(int), axis=1) == 0).mean()
    assert runs > 0.6  # blocks: neighbours are drawn together
    assert block_length(250) == 6 and block_length(1) == 1


def test_interval_covers_the_true_ratio():
    rng, hits = np.random.default_rng(0), 0
    for trial in range(200):
        below = rng.gamma(20, 1, 120)
        above = 0.9 * below + rng.normal(0, 1, 120)
        sampler = PairedBootstrap([120], resamples=400, seed=trial)
        interval = sampler.interval(*sampler.ratio([above], [below]))
        hits += interval.low <= 0.9 <= interval.high
    assert 0.86 <= hits / 200 <= 0.99


def test_pairing_cancels_what_rules_share():
    rng = np.random.default_rng(1)
    noise = rng.gamma(2, 1, 200)
    first, second = noise, noise * 1.01
    sampler = PairedBootstrap([200])
    (a, a_star), (b, b_star) = (sampler.ratio([x], [np.ones(200)]) for x in (first, second))
    difference = sampler.interval(a - b, a_star - b_star)
    alone = sampler.interval(a, a_star)
    assert difference.excludes(0.0) and alone.high - alone.low > 10 * (difference.high - difference.low)
    same = sampler.interval(a - a, a_star - a_star)
    assert not same.excludes(0.0) and (same.low, same.high) == (0.0, 0.0)


def test_no_difference_is_found_where_there_is_none():
    rng, found = np.random.default_rng(2), 0
    for trial in range(200):
        shared = rng.gamma(20, 1, 100)
        sampler = PairedBootstrap([50, 50], resamples=300, seed=trial)
        x, y = (shared + rng.normal(0, 1, 100) for _ in range(2))
        ones = [np.ones(50)] * 2
        (a, a_star), (b, b_star) = (sampler.ratio([v[:50], v[50:]], ones) for v in (x, y))
        found += sampler.interval(a - b, a_star - b_star).excludes(0.0)
    assert found / 200 <= 0.13


def test_seeds_are_averaged_and_dead_resamples_are_left_out():
    sampler = PairedBootstrap([5, 5])
    value, _ = sampler.ratio([np.ones(5), np.full(5, 4.0)], [np.ones(5), np.full(5, 2.0)])
    assert value == 1.5
    one = np.array([1.0, 0, 0, 0, 0])
    value, star = sampler.ratio([one] * 2, [2 * one] * 2)
    assert value == 0.5 and np.isnan(star).any()
    interval = sampler.interval(value, star)
    assert (interval.low, interval.high) == (0.5, 0.5)
    nothing = sampler.interval(*sampler.ratio([np.zeros(5)] * 2, [np.zeros(5)] * 2))
    assert nothing.low == -np.inf and not nothing.excludes(1.0)


def test_a_handful_of_steps_shows_nothing():
    few = PairedBootstrap([9])
    interval = few.interval(*few.ratio([np.full(9, 0.5)], [np.ones(9)]))
    assert interval.estimate == 0.5 and interval.low == -np.inf and verdict(interval, 1.0) == "no difference shown"


def test_very_long_runs_are_bundled():
    steps = 3 * MOST_UNITS
    sampler = PairedBootstrap([steps], resamples=50)
    assert sampler._weights[0].shape == (50, MOST_UNITS)
    value, star = sampler.ratio([np.full(steps, 0.5)], [np.ones(steps)])
    assert value == 0.5 and np.allclose(star, 0.5)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [(0.8, 0.99, "better"), (0.8, 1.0, "no difference shown"), (1.0, 1.2, "no difference shown"), (1.01, 1.2, "worse")],
)
def test_nothing_is_better_whose_interval_contains_the_reference(low, high, word):
    assert verdict(Interval((low + high) / 2, low, high), 1.0) == word


@pytest.mark.parametrize("model", [RLOO(), DrGRPO()])
@pytest.mark.parametrize("ratio", [0.3, 0.7, 0.8033, 1.0, 1.2])
def test_equivalent_group_solves_its_equation(model, ratio):
    n = equivalent_group_size(Setting(model), ratio, 8.0)
    assert float(model.factor(np.array([n]))[0]) == pytest.approx(ratio * float(model.factor(np.array([8.0]))[0]))
    if model.name == "rloo":
        assert n == pytest.approx(1 + 7 / ratio)


def test_equivalent_group_at_the_edges():
    setting = Setting(RLOO())
    assert equivalent_group_size(setting, 0.0, 8.0) == np.inf
    assert equivalent_group_size(setting, np.inf, 8.0) == 1.0
    assert np.isnan(equivalent_group_size(setting, np.nan, 8.0))
    assert equivalent_group_size(Setting(DrGRPO()), 4.0, 8.0) == 2.0
