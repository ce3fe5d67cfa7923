"""Real rewards whose spread changes by orders of magnitude: predictions follow, and no step's trouble outlives it."""

from __future__ import annotations

import copy
import logging

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import optimize

from viprl.prediction import RewardVariancePredictor
from viprl.prediction.level import CUT, VarianceLevel, _factor
from viprl.prediction.reward_variance import inverse_softplus, softplus
from viprl.testing.checks import same

N, BATCH, ROLLOUTS = 64, 16, 8
IDS = [f"p{i}" for i in range(N)]
TEXTS = [f"Add {i} and {i * 7 % 11}, then name {'a colour' if i % 3 else 'an animal'}." for i in range(N)]


def step(predictor, rewards, ids):
    """Predict, then observe rewards (B, n) with NaN where missing; returns the prediction."""
    found = predictor.predict(ids)
    assert np.isfinite(found.reward_variance).all() and (found.reward_variance > 0).all()
    assert np.isfinite(found.mean).all()
    present = (~np.isnan(rewards)).sum(axis=1)
    means = np.full(len(ids), np.nan)
    variances = np.full(len(ids), np.nan)
    for i, row in enumerate(rewards):
        row = row[~np.isnan(row)]
        means[i] = row.mean() if len(row) else np.nan
        variances[i] = row.var(ddof=1) if len(row) > 1 else np.nan
    predictor.observe_rewards(ids, means, variances, present)
    return found


def batches(rng, steps):
    order = np.concatenate([rng.permutation(N) for _ in range(1 + steps * BATCH // N)])
    return [order[t * BATCH : (t + 1) * BATCH] for t in range(steps)]


@pytest.mark.parametrize("texts", [TEXTS, None])
@pytest.mark.parametrize("factor", [1e-12, 1e-5, 0.1, 5.0, 7.0, 10.0, 100.0, 1e5, 1e12])
def test_predictions_follow_a_spread_that_jumps(texts, factor):
    rng = np.random.default_rng(0)
    predictor = RewardVariancePredictor(prompt_ids=IDS, texts=texts)
    for t, rows in enumerate(batches(rng, 16)):
        scale = 0.1 if t < 8 else 0.1 * factor
        step(predictor, scale * rng.uniform(size=(BATCH, ROLLOUTS)), [IDS[i] for i in rows])
    found = predictor.predict(IDS).reward_variance / ((0.1 * factor) ** 2 / 12)
    assert 0.5 < np.median(found) < 2 and 0.1 < found.min() and found.max() < 10
    assert predictor.metrics()["regression_restarts"] == 0


@pytest.mark.parametrize("seed", [0])
def test_accuracy_that_rises_from_nothing_beside_a_small_format_reward(seed):
    rng, steps = np.random.default_rng(seed), 150
    predictor = RewardVariancePredictor(prompt_ids=IDS, texts=TEXTS)
    hard = rng.normal(size=N)
    for t, rows in enumerate(batches(rng, steps)):
        p = 1 / (1 + np.exp(6 + 2 * hard - 0.04 * t))
        rewards = 0.1 * (rng.uniform(size=(BATCH, ROLLOUTS)) < 0.5 + 0.2 * t / steps)
        rewards += rng.uniform(size=(BATCH, ROLLOUTS)) < p[rows, None]
        step(predictor, rewards, [IDS[i] for i in rows])
    found = predictor.predict(IDS).reward_variance
    assert found.sum() == pytest.approx((p * (1 - p)).sum(), rel=0.3)
    assert np.corrcoef(found, p * (1 - p))[0, 1] > 0.55


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_anything_finite_can_be_observed_and_the_predictor_recovers(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    keep = data.draw(st.sampled_from([0.0, 0.8, 1.0]))
    fresh = RewardVariancePredictor(np.eye(N)[:, :5], prompt_ids=IDS, keep=keep)
    predictor = copy.deepcopy(fresh)
    for _ in range(data.draw(st.integers(1, 10))):
        rows = rng.choice(N, data.draw(st.integers(1, 24)), replace=False)
        rewards = 10.0 ** data.draw(st.integers(-12, 12)) * rng.normal(size=(len(rows), ROLLOUTS))
        rewards += data.draw(st.sampled_from([0.0, 1.0, -1e12, 1e-12]))
        kind = data.draw(st.sampled_from(["plain", "constant", "some constant", "missing", "single", "an outlier"]))
        if kind == "constant":
            rewards[:] = rewards[:, :1]
        elif kind == "some constant":
            rewards[::2] = rewards[::2, :1]
        elif kind == "missing":
            rewards[rng.uniform(size=rewards.shape) < 0.7] = np.nan
        elif kind == "single":
            rewards[:, 1:] = np.nan
        elif kind == "an outlier":
            rewards[0, 0] = 1e18
        step(predictor, rewards, [IDS[i] for i in rows])
        other = copy.deepcopy(fresh)
        other.load_state_dict(predictor.state_dict())
        assert same(other.state_dict(), predictor.state_dict())
    for rows in np.tile(np.arange(N).reshape(-1, BATCH), (6, 1)):
        step(predictor, rng.normal(size=(BATCH, ROLLOUTS)), [IDS[i] for i in rows])
    # with keep = 1 a prompt's first group counts for ever
    limit = 200 if keep == 1 else 20
    assert (predictor.predict(IDS).reward_variance < limit).all(), "six passes later"
    assert 0.1 < np.median(predictor.predict(IDS).reward_variance) < 10


def test_the_level_is_not_moved_by_one_group():
    level = VarianceLevel()
    ones, degrees = np.ones(32), np.full(32, 7.0)
    level.learn(ones, degrees * 2.0, degrees, 0.5)
    squares = degrees * 2.0
    squares[3] *= 1e12
    level.learn(ones, squares, degrees, 0.5)
    assert level.value == pytest.approx(2.0, rel=0.1)


def test_the_level_is_steady_where_nothing_changes():
    rng, level, found = np.random.default_rng(0), VarianceLevel(), []
    for _ in range(300):
        level.learn(np.ones(64), 5.0 * rng.chisquare(7, 64), np.full(64, 7.0), 0.1)
        found.append(level.value)
    assert np.mean(found) == pytest.approx(5.0, rel=0.03) and np.std(np.log(found[20:])) < 0.03


def test_a_step_without_spread_leaves_the_level():
    level = VarianceLevel()
    level.learn(np.ones(4), np.zeros(4), np.full(4, 7.0), 1.0)
    assert not level.known
    level.learn(np.ones(4), np.full(4, 7.0), np.full(4, 7.0), 1.0)
    before = level.value
    level.learn(np.ones(4), np.zeros(4), np.full(4, 7.0), 1.0)
    assert level.value == before > 0


@settings(max_examples=100, deadline=None)
@example([(0.0, 0.125), (1.1838143645575951e-211, 2.0)])
@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0.1, 5)), min_size=1, max_size=30))
def test_the_factor_solves_its_equation(pairs):
    ratio, weight = (np.array(column) for column in zip(*pairs, strict=True))
    weight /= weight.sum()
    ratio[0] += 1e-3
    cut = CUT / weight[ratio > 0].sum()

    def gap(log_rho):
        return weight @ np.minimum(ratio / np.exp(log_rho), cut) - 1

    assert np.log(_factor(ratio, weight)) == pytest.approx(optimize.brentq(gap, -700, 60), abs=1e-6)


@pytest.mark.parametrize("v", [1e-12, 1e-3, 1.0, 50.0, 800.0, 1e8])
def test_the_inverse_of_softplus_does_not_overflow(v):
    assert softplus(inverse_softplus(np.array(v))) == pytest.approx(v, rel=1e-9)


def sick(state, where):
    """As a run in trouble would have saved it."""
    if where == "regression":
        state["regression"]["information"][0, 0] = np.nan
        state["regression"]["alpha"][:] = np.nan
    elif where == "prompts":
        state["table"]["columns"]["weight"][:3] = np.inf
        state["table"]["columns"]["squares"][5] = np.nan
    else:
        state["level"]["value"] = np.nan
    return state


@pytest.mark.parametrize("where", ["regression", "prompts", "level"])
def test_a_state_saved_in_trouble_can_be_resumed(where, caplog):
    rng = np.random.default_rng(0)
    first, second = (RewardVariancePredictor(prompt_ids=IDS, texts=TEXTS) for _ in range(2))
    for rows in batches(rng, 6):
        step(first, rng.normal(size=(BATCH, ROLLOUTS)), [IDS[i] for i in rows])
    with caplog.at_level(logging.WARNING, "viprl"):
        second.load_state_dict(sick(first.state_dict(), where))
    restarts = float(where != "level")
    assert second.metrics()["regression_restarts"] == restarts == len(caplog.records)
    for rows in batches(rng, 8):
        step(second, rng.normal(size=(BATCH, ROLLOUTS)), [IDS[i] for i in rows])
    assert np.median(second.predict(IDS).reward_variance) == pytest.approx(1.0, rel=0.3)


def test_a_state_from_before_the_level_moved_is_understood():
    rng = np.random.default_rng(0)
    new, old = (RewardVariancePredictor(prompt_ids=IDS) for _ in range(2))
    step(new, 30 * rng.normal(size=(N, ROLLOUTS)), IDS)
    state = new.state_dict()
    level = state.pop("level")["value"]
    state["global"]["scale"] = level
    state["table"]["columns"]["squares"] *= level
    old.load_state_dict(state)
    assert old.predict(IDS).reward_variance == pytest.approx(new.predict(IDS).reward_variance)
    assert old.merge_state(state)["kept"] == IDS


@pytest.mark.parametrize("make", ["real", "binary"])
def test_a_regression_that_cannot_be_computed_starts_again(make, caplog):
    from viprl.prediction import CalibratedPredictor

    predictor = (RewardVariancePredictor if make == "real" else CalibratedPredictor)(prompt_ids=IDS, texts=TEXTS)
    predictor.observe(IDS, np.arange(N) % 9, np.full(N, 8))
    with caplog.at_level(logging.WARNING, "viprl"):
        for _ in range(2):
            predictor._regression.information[0, 0] = -1e9  # as after too many subtractions
            predictor.observe(IDS, np.arange(N) % 9, np.full(N, 8))
            found = predictor.predict(IDS)
            assert np.isfinite(found.mean).all() and np.isfinite(found.reward_variance).all()
    assert predictor.metrics()["regression_restarts"] == 2 and len(caplog.records) == 1
    predictor.observe(IDS, np.arange(N) % 9, np.full(N, 8))
    assert predictor.metrics()["regression_restarts"] == 2
