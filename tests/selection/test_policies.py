"""Selection policies: budgets, draws, exploration, and the inverse-probability estimate's bias and variance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viprl.errors import ConfigurationError
from viprl.selection import (
    CHOSEN,
    EXPLORED,
    LEFT,
    OVERDUE,
    Candidates,
    Learnability,
    SaturatingValue,
    SelectionPolicy,
    Top,
    Unbiased,
    UniformSelection,
)
from viprl.selection.policies import inclusion, systematic

POLICIES = (Learnability(), Top(), UniformSelection(), Unbiased())


def candidates(p: np.ndarray, *, waited: np.ndarray | None = None, budget: int = 256, nominal: int = 32) -> Candidates:
    a = p * (1 - p)
    waits = np.zeros(len(p)) if waited is None else waited
    return Candidates(SaturatingValue.of(a, a**2, 1.0), budget, 3, 32, nominal, waits)


def mixed(seed: int = 0, count: int = 128, dead: float = 0.6) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(count) < dead, 0.001, rng.uniform(0.1, 0.9, count))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
def test_budget_bounds_and_reasons(policy: SelectionPolicy) -> None:
    for seed in range(20):
        found = policy.select(candidates(mixed(seed)), np.random.default_rng(seed))
        kept = found.sizes > 0
        assert found.sizes.sum() == 256
        assert found.sizes[kept].min() >= 3 and found.sizes.max() <= 32
        assert (found.reason[kept] != LEFT).all() and (found.reason[~kept] == LEFT).all()
        assert (found.weight[~kept] == 0).all() and (found.weight[kept] > 0).all()


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
def test_the_same_draws_give_the_same_selection(policy: SelectionPolicy) -> None:
    first, second = (policy.select(candidates(mixed()), np.random.default_rng(5)) for _ in range(2))
    assert np.array_equal(first.sizes, second.sizes) and np.array_equal(first.weight, second.weight)


def test_top_keeps_the_best_and_learnability_avoids_the_dead() -> None:
    p = mixed()
    dead = p < 0.01
    top = Top(floor=0.0).select(candidates(p), np.random.default_rng(0)).sizes > 0
    a = p * (1 - p)
    assert a[top].min() >= a[~top].max() - 1e-9
    drawn = [Learnability(floor=0.0).select(candidates(p), np.random.default_rng(i)).sizes > 0 for i in range(50)]
    assert np.mean([(k & dead).sum() / k.sum() for k in drawn]) < 0.05
    assert len({tuple(k) for k in drawn}) > 40  # a draw, not a ranking


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.name)
def test_where_all_are_alike_the_step_is_the_uniform_one_to_the_last_bit(policy: SelectionPolicy) -> None:
    for p in (np.full(128, 0.3), np.zeros(128)):
        alike = candidates(p, waited=np.linspace(0, 5, 128) if policy.rests else None)
        plain = UniformSelection(floor=policy.floor if policy.rests else 0.0, max_rest=policy.max_rest)
        ours, uniform = (rule.select(alike, np.random.default_rng(3)) for rule in (policy, plain))
        assert np.array_equal(ours.sizes, uniform.sizes) and np.array_equal(ours.reason, uniform.reason)
        assert np.count_nonzero(ours.sizes) == 32 and (ours.sizes[ours.sizes > 0] == 8).all()
        assert (ours.weight[ours.sizes > 0] == 1).all()


def test_nearly_alike_candidates_have_nearly_the_same_chance() -> None:
    worth = np.full(64, 0.3) + 1e-6 * np.arange(64)
    kept = np.bincount(np.concatenate([Learnability().pick(worth, 16, np.random.default_rng(i)) for i in range(800)]))
    assert np.abs(kept / 800 - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 800)


def test_exploration_is_a_uniform_floor() -> None:
    p = mixed()
    runs = [Top(floor=0.2).select(candidates(p), np.random.default_rng(i)) for i in range(200)]
    share = np.mean([(r.reason == EXPLORED).sum() / (r.sizes > 0).sum() for r in runs])
    assert share == pytest.approx(0.2, abs=0.015)
    dead = p < 0.01
    assert np.mean([(r.reason[dead] == EXPLORED).sum() for r in runs]) > 0.2 * 0.5 * np.mean(
        [(r.reason == EXPLORED).sum() for r in runs]
    )
    assert not any(
        (r.reason == EXPLORED).any() for r in [Top(floor=0.0).select(candidates(p), np.random.default_rng(0))]
    )


def test_who_waited_too_long_is_offered_rollouts() -> None:
    p, waited = mixed(), np.zeros(128)
    dead = np.flatnonzero(p < 0.01)
    waited[dead[:5]], waited[dead[5:9]] = [9, 8, 7, 6, 5], 3.9
    found = Top(floor=0.0).select(candidates(p, waited=waited), np.random.default_rng(0))
    assert np.flatnonzero(found.reason == OVERDUE).tolist() == dead[:5].tolist()
    assert (found.sizes[dead[:5]] == 3).all() and (found.sizes[dead[5:9]] == 0).all()
    never = Top(floor=0.0, max_rest=None).select(candidates(p, waited=waited), np.random.default_rng(0))
    assert (never.sizes[dead] == 0).all()


def test_overdue_candidates_never_take_more_than_half_of_a_step() -> None:
    found = Top().select(candidates(mixed(), waited=np.full(128, 99.0)), np.random.default_rng(0))
    assert (found.reason == OVERDUE).sum() <= (found.sizes > 0).sum() / 2
    assert (found.reason == CHOSEN).any()


def test_uniform_selection_is_the_trainers_own_step() -> None:
    found = UniformSelection().select(candidates(mixed()), np.random.default_rng(0))
    assert np.count_nonzero(found.sizes) == 32 and set(found.sizes[found.sizes > 0]) == {8}


def test_unbiased_chances_are_kept_by_the_draw() -> None:
    pool, policy = candidates(mixed()), Unbiased()
    found = policy.select(pool, np.random.default_rng(0))
    rows, count = np.flatnonzero(found.sizes), int((found.sizes > 0).sum())
    chances = policy.chances(pool, count)
    assert chances.sum() == pytest.approx(count) and chances.min() >= 0.1 * count / 128 - 1e-9
    assert found.weight[rows] == pytest.approx(count / 128 / chances[rows])
    assert np.array_equal(rows, np.sort(systematic(chances, np.random.default_rng(0))))
    drawn = np.bincount(np.concatenate([systematic(chances, np.random.default_rng(i)) for i in range(2000)]))
    assert np.abs(drawn / 2000 - chances).max() < 5 * np.sqrt(0.25 / 2000)


@given(
    st.lists(st.sampled_from([0.0, 1e-6, 0.1, 0.2, 1.0, 50.0]), min_size=1, max_size=40),
    st.floats(0, 1),
    st.floats(0.01, 1),
)
def test_inclusion_probabilities(weights: list[float], share: float, floor: float) -> None:
    """They add up, keep the floor, follow the weights in between; found by sorting, checked by their definition."""
    w = np.array(weights)
    count = max(1, round(share * len(w)))
    chances = inclusion(w, count, floor)
    assert chances.sum() == pytest.approx(count)
    assert chances.max() <= 1 + 1e-12
    if np.count_nonzero(w) + floor * count / len(w) * np.count_nonzero(w == 0) >= count:
        least = floor * count / len(w)
        assert chances.min() >= least - 1e-12
        between = (chances > least + 1e-9) & (chances < 1 - 1e-9)
        if between.any() and w.any():
            ratio = chances[between] / w[between]
            assert ratio == pytest.approx(np.full(len(ratio), ratio[0]), rel=1e-6)


def test_unbiased_estimates_the_mean_gradient_with_the_predicted_variance() -> None:
    """Prompts' gradients g_q with noise: the weighted mean's bias is nil, its variance what the chances predict.

    Against uniform draws of the same number of equal groups the ratio is below one on a pool of which 60 % are dead.
    """
    rng = np.random.default_rng(3)
    p, dimension, trials = mixed(4), 12, 2000
    a, policy = p * (1 - p), Unbiased()
    pool = candidates(p)
    gradients = a[:, None] * rng.normal(1.0, 1.0, (128, dimension)) / np.sqrt(dimension)
    count = int((policy.select(pool, np.random.default_rng(0)).sizes > 0).sum())
    noise = np.sqrt(a / (256 / count - 1) / dimension)  # of one prompt's estimate, a coordinate
    chances = policy.chances(pool, count)
    moment = (gradients**2).sum(1) + dimension * noise**2

    def estimates(weigh: bool) -> np.ndarray:
        found = np.empty((trials, dimension))
        for i in range(trials):
            draws = np.random.default_rng([9, i])
            if weigh:
                weight, rows = np.zeros(128), systematic(chances, draws)
                weight[rows] = count / 128 / chances[rows]
            else:
                weight = np.zeros(128)
                weight[draws.permutation(128)[:count]] = 1.0
            kept = np.flatnonzero(weight)
            seen = gradients[kept] + noise[kept, None] * rng.normal(size=(len(kept), dimension))
            found[i] = (weight[kept, None] * seen).sum(0) / count
        return found

    ours, uniform = estimates(True), estimates(False)
    mean = gradients.mean(0)
    error = ours.std(0) / np.sqrt(trials)
    assert (np.abs(ours.mean(0) - mean) < 4.5 * error).all()
    measured = ours.var(0).sum() / uniform.var(0).sum()
    # Poisson sampling's variances, an upper bound for draws of a fixed number
    predicted = ((moment / chances).sum() - (gradients**2).sum()) / (
        (moment * 128 / count).sum() - (gradients**2).sum()
    )
    assert measured < 0.75
    assert measured == pytest.approx(predicted, rel=0.2)


@pytest.mark.parametrize("settings", [{"floor": 1.5}, {"floor": -0.1}, {"max_rest": 0.5}, {"sharpness": 0.0}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="must hold"):
        Learnability(**settings)
