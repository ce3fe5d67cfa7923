"""What selection would have saved: pools whose answer is known, and a log against the pool that it came from."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.stats import hypergeom

from viprl.prompts import PromptSet
from viprl.replay import DriftingPrompts, PromptPool, RecordedLog, Setting, VisitLog
from viprl.replay.rates import Rates
from viprl.replay.saving import Saving, _alive, forecast_saving, saving, saving_data, saving_lines
from viprl.settings import AllocationSettings
from viprl.variance import RLOO

FIXED = Setting(RLOO(), 8, 8)  # groups as the run's, so that only the choice of prompts differs
TOP = AllocationSettings(candidates=4, selection="top", predictor="beta", exploration=0.0, max_rest=None)
LEARNABILITY = AllocationSettings(candidates=4, predictor="beta")


def rates(dead: float, size: int = 192, seed: int = 0) -> np.ndarray:
    draws = np.random.default_rng(seed)
    return np.where(draws.random(size) < dead, 0.0, draws.uniform(0.2, 0.8, size))


def pool(p: np.ndarray, batch: int = 16, epochs: int = 5) -> tuple[PromptPool, PromptSet]:
    ids = tuple(f"q{i}" for i in range(len(p)))
    return PromptPool(ids, p, batch=batch, group_size=8, epochs=epochs), PromptSet(ids)


def told(found: Saving | str) -> Saving:
    assert isinstance(found, Saving), found
    return found


def recorded(p: np.ndarray, steps: int, batch: int, sizes: int | np.ndarray = 8, seed: int = 1) -> VisitLog:
    """A run of uniform groups over prompts whose rates stand still."""
    draws = np.random.default_rng(seed)
    orders = np.concatenate([draws.permutation(len(p)) for _ in range(1 + steps * batch // len(p))])[: steps * batch]
    n = np.broadcast_to(np.asarray(sizes), len(orders))
    ids = np.array([f"q{i}" for i in range(len(p))], dtype=object)[orders]
    return VisitLog.build(np.repeat(np.arange(steps), batch), ids, draws.binomial(n, p[orders]), n)


def test_uniforms_dead_groups_are_the_binomial_formula() -> None:
    p = rates(0.6)
    found = told(saving(*pool(p), FIXED, LEARNABILITY))
    # whole epochs: every prompt counts as often as any other
    assert found.uniform_dead == pytest.approx(float((p**8 + (1 - p) ** 8).mean()), abs=1e-12)
    assert (found.uniform_groups, found.uniform_group_size) == (16, 8) and found.basis == "simulated"


def test_where_nothing_can_be_gained_nothing_is() -> None:
    for settings in (TOP, LEARNABILITY):
        found = told(saving(*pool(np.full(192, 0.5)), FIXED, settings))
        assert found.rollouts.estimate == pytest.approx(1.0) and found.avoided.estimate == pytest.approx(0.0, abs=1e-9)
    found = told(saving(*pool(rates(0.6)), FIXED, LEARNABILITY.replace(selection="uniform"), seeds=(0, 1)))
    assert not found.rollouts.excludes(1.0) and found.rollouts.estimate == pytest.approx(1.0, abs=0.08)


def test_the_best_ranking_reaches_what_arithmetic_allows() -> None:
    """After a first pass over everybody, all groups go to live prompts: as many live groups for their share."""
    p = rates(0.6)
    alive = (1 - p**8 - (1 - p) ** 8)[p > 0].mean()
    found = told(saving(*pool(p, epochs=12), FIXED, TOP))
    least = float((p > 0).mean())  # of the rollouts, once all is known
    assert least < found.rollouts.estimate < least + 0.12
    assert 1 - alive - 0.01 < found.dead < 1 - alive + 0.15
    assert found.avoided.low < found.avoided.estimate < found.avoided.high <= 1.0


def test_a_free_number_of_prompts_is_told() -> None:
    found = told(saving(*pool(rates(0.6)), Setting(RLOO(), 3, 32), LEARNABILITY))
    assert found.groups > 18 and found.group_size * found.groups == pytest.approx(16 * 8)
    # smaller groups are live more often a rollout, whoever gets them: that part is told apart
    assert found.rollouts.estimate < found.by_choice.estimate < 0.9 and found.by_choice.high < 1.0
    same = told(saving(*pool(np.full(192, 0.2)), Setting(RLOO(), 3, 32), LEARNABILITY))
    assert same.rollouts.estimate == pytest.approx(1.0, abs=0.05)  # nobody is worth more: the step is a uniform one
    assert same.by_choice.estimate == pytest.approx(1.0, abs=0.01)
    assert found.rollouts.high < 0.8


def test_intervals_hold_what_other_seeds_give() -> None:
    p = rates(0.5)
    one = told(saving(*pool(p, epochs=3), FIXED, LEARNABILITY, seeds=(0, 1)))
    others = [told(saving(*pool(p, epochs=3), FIXED, LEARNABILITY, seeds=(s,))).rollouts.estimate for s in range(2, 5)]
    assert one.rollouts.low - 0.02 < np.mean(others) < one.rollouts.high + 0.02


def test_drift_is_played_too() -> None:
    world = DriftingPrompts(prompts=256, batch=16, steps=60)
    found = told(saving(world, PromptSet(world.prompt_ids), FIXED, LEARNABILITY))
    assert found.steps == 60 and found.rollouts.high < 1.0
    assert world.batch == 16 and world.offering(4).budget == world.budget == 128


def test_few_prompts_offer_fewer_candidates() -> None:
    assert told(saving(*pool(rates(0.6, 60)), FIXED, LEARNABILITY)).candidates == 3
    assert "no two batches" in str(saving(*pool(rates(0.6, 30)), FIXED, LEARNABILITY))


@pytest.mark.parametrize("settings", [TOP, LEARNABILITY], ids=["top", "learnability"])
def test_a_log_says_what_its_pool_does(settings: AllocationSettings) -> None:
    """Two ways that share little: choosing among recorded groups, and playing the pool behind them."""
    p = rates(0.6)
    log = RecordedLog(recorded(p, steps=480, batch=16))
    one = told(saving(log, PromptSet(log.prompt_ids), FIXED, settings))
    other = told(saving(*pool(p, epochs=10), FIXED, settings))
    assert one.basis == "recorded" and one.steps == 120 and one.groups == 16 and one.group_size == 8
    assert one.uniform_dead == pytest.approx(other.uniform_dead, abs=0.02)
    assert one.rollouts.estimate == pytest.approx(other.rollouts.estimate, abs=0.08)
    assert one.avoided.estimate == pytest.approx(other.avoided.estimate, abs=0.08)


def test_a_log_is_not_looked_into_ahead() -> None:
    """Prompts that are all alike: a choice that had seen the groups would find the live ones."""
    log = RecordedLog(recorded(np.full(192, 0.1), steps=480, batch=16))
    for settings in (TOP, LEARNABILITY):
        found = told(saving(log, PromptSet(log.prompt_ids), FIXED, settings))
        assert not found.rollouts.excludes(1.0) and found.rollouts.estimate == pytest.approx(1.0, abs=0.05)


def test_recorded_groups_count_as_they_were() -> None:
    log = recorded(rates(0.6), steps=192, batch=16)
    found = told(saving(RecordedLog(log), PromptSet(log.prompt_ids), Setting(RLOO(), 3, 32), LEARNABILITY))
    dead = (log.successes == 0) | (log.successes == log.rollouts)
    assert found.uniform_dead == pytest.approx(dead.mean(), abs=0.01)  # but for prompts that stand twice in a window
    assert found.group_size == 8  # the bounds ask for more than was recorded: they are not made up


def test_groups_of_unequal_size_are_cut_to_one_that_nearly_all_have() -> None:
    sizes = np.random.default_rng(0).choice([4, 6, 9], 1280, p=[0.05, 0.15, 0.8])
    log = recorded(rates(0.6), steps=80, batch=16, sizes=sizes)
    found = told(saving(RecordedLog(log), PromptSet(log.prompt_ids), FIXED, LEARNABILITY))
    assert found.group_size == pytest.approx(6)


def test_resampling_has_rollouts_for_other_sizes() -> None:
    log = RecordedLog(recorded(rates(0.6), steps=192, batch=16, sizes=64), budget=8, resample=True)
    found = told(saving(log, PromptSet(log.prompt_ids), Setting(RLOO(), 3, 32), LEARNABILITY))
    assert found.groups > 18 and found.uniform_groups == 16 and found.uniform_group_size == 8
    assert found.rollouts.high < 0.9


def test_what_a_log_cannot_tell() -> None:
    log = recorded(rates(0.5, 48), steps=3, batch=24)
    prompts = PromptSet(log.prompt_ids)
    assert "hold no 4" in str(saving(RecordedLog(log), prompts, FIXED, LEARNABILITY))
    outage = RecordedLog(log, outage=(0, 1))
    assert "successes as they were" in str(saving(outage, prompts, FIXED, LEARNABILITY))
    means = log.successes / log.rollouts
    real = dataclasses.replace(log, means=means, variances=np.full(len(log), 0.1))
    assert "successes as they were" in str(saving(RecordedLog(real), prompts, FIXED, LEARNABILITY))
    few = told(saving(RecordedLog(recorded(rates(0.5, 48), 20, 24)), prompts, FIXED, LEARNABILITY))
    assert np.isinf(few.rollouts.high)  # five windows: no interval


def test_chances_of_both_outcomes_are_hypergeometric() -> None:
    for n, size in ((8, 8), (8, 3), (64, 20), (5, 1)):
        k = np.arange(n + 1)
        expected = 1 - hypergeom.pmf(0, n, k, size) - hypergeom.pmf(size, n, k, size)
        np.testing.assert_allclose(_alive(k, np.full(n + 1, n), np.full(n + 1, size)), expected, atol=1e-12)


def test_a_forecast_knows_the_pool_from_a_few_rollouts_a_prompt() -> None:
    """Counts of eight rollouts forecast what playing the true pool gives, within the interval that they say."""
    p = rates(0.6, 256)
    ids = tuple(f"q{i}" for i in range(len(p)))
    counts = np.random.default_rng(3).binomial(8, p)
    few = told(
        forecast_saving(Rates(ids, counts / 8, np.full(len(p), 8)), 32, FIXED, LEARNABILITY, group_size=8, seed=1)
    )
    exact = told(forecast_saving(Rates(ids, p, None), 32, FIXED, LEARNABILITY, group_size=8, seed=1))
    true = told(saving(*pool(p, batch=32, epochs=4), FIXED, LEARNABILITY, seeds=(5, 6)))
    for found in (few, exact):
        assert found.rollouts.low < true.rollouts.estimate < found.rollouts.high, (found, true)
        assert found.rollouts.high - found.rollouts.low < 0.25
        assert found.dead == pytest.approx(true.dead, abs=0.06)
    assert "no two batches" in str(forecast_saving(Rates(ids, p, None), 200, FIXED, LEARNABILITY, group_size=8))


def test_words_and_data() -> None:
    found = told(saving(*pool(rates(0.6), epochs=3), FIXED, LEARNABILITY))
    first, second = saving_lines(found)
    assert "(learnability, 4 candidates a prompt)" in first and "1.00 times as many prompts with 8 rollouts" in first
    low, high = (100 * x for x in (found.rollouts.low, found.rollouts.high))
    assert f"{100 * found.rollouts.estimate:.0f}% [{low:.0f} to {high:.0f}%] of the rollouts" in first
    assert second.startswith("Played over 36 steps")
    assert saving_lines("since nothing is known") == ["Selection: not told, since nothing is known."]
    data = saving_data(found)
    assert isinstance(data, dict) and data["rollouts"]["estimate"] == found.rollouts.estimate
    dead = told(saving(*pool(np.zeros(192)), FIXED, LEARNABILITY))
    assert dead.dead == dead.uniform_dead == 1.0 and "for ? (too few steps for an interval)" in saving_lines(dead)[0]
