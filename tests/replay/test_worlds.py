"""The four protocols: what they show to rules, what they keep for scoring, and that they are the same every time."""

from __future__ import annotations

import numpy as np
import pytest

from viprl.errors import InvalidInputError
from viprl.replay import DriftingPrompts, Event, PromptPool, RecordedLog, VisitLog


def coin_log(p, visits=3, n=8, seed=0):
    """A log of ``visits`` steps in which every prompt of p is visited once."""
    rng = np.random.default_rng(seed)
    steps = np.repeat(np.arange(visits), len(p))
    names = np.array([f"q{q}" for q in range(len(p))] * visits, dtype=object)
    return VisitLog.build(steps, names, rng.binomial(n, np.tile(p, visits)).astype(float), np.full(len(steps), n))


def all_steps(world, seed, sizes=None):
    for step in world.run(seed):
        yield step
        step.learn(np.full(len(step), 8) if sizes is None else sizes(len(step)))


def test_recorded_log_tells_everything_and_marks_first_visits():
    log = coin_log(np.full(5, 0.4))
    steps = list(all_steps(RecordedLog(log), 0))
    assert [s.phase for s in steps] == ["first visits", "later", "later"]
    assert [s.budget for s in steps] == [40, 40, 40]
    k, n = steps[0].learn(np.full(5, 3))
    assert k.tolist() == log.successes[:5].tolist() and n.tolist() == [8] * 5


def test_weight_stays_unbiased_for_rules_that_look_inside_the_step():
    p = np.full(4000, 0.3)
    for drawn in (0, 3, 6):
        step = next(iter(RecordedLog(coin_log(p, visits=1)).run(1)))
        step.draw(np.arange(len(p)), drawn)
        assert (step.drawn == drawn).all()
        assert step.weight.mean() == pytest.approx(0.21, abs=0.01)
        rate = step.hits.sum() / max(step.drawn.sum(), 1)
        assert drawn == 0 or rate == pytest.approx(0.3, abs=0.02)
        if drawn:  # given what was seen, the kept rollouts say the same
            lucky = step.hits >= 2
            assert step.weight[lucky].mean() == pytest.approx(0.21, abs=0.03)


def test_two_rollouts_of_a_visit_are_kept_from_the_rules():
    step = next(iter(RecordedLog(coin_log(np.full(10, 0.5), visits=1)).run(0)))
    for _ in range(5):
        step.draw(np.arange(10), 3)
    assert (step.drawn == 6).all() and np.isfinite(step.weight).all()
    assert ((step.hits >= 0) & (step.hits <= step._k)).all()


def test_resampling_shows_only_the_rollouts_asked_for():
    log = coin_log(np.linspace(0.05, 0.95, 50), visits=2, n=64)
    world = RecordedLog(log, resample=True, budget=8)
    step = next(iter(world.run(3)))
    assert step.budget == 400
    sizes = np.arange(3, 53)
    step.draw(np.arange(10), 2)
    seen = step.hits.copy()
    k, n = step.learn(sizes)
    assert n.tolist() == sizes.tolist() and (k <= n).all() and (k >= seen).all()
    many = [world_step.learn(np.full(50, 32))[0] for seed in range(200) for world_step in [next(iter(world.run(seed)))]]
    assert np.mean(many, axis=0) == pytest.approx(32 * log.successes[:50] / 64, abs=1.2)


def test_outage_lies_to_the_predictor_and_not_to_the_scores():
    log = coin_log(np.full(6, 0.6), visits=6)
    world = RecordedLog(log, outage=(2, 2))
    told = [(step.learn(np.full(6, 8))[0].sum(), step.weight.sum()) for step in world.run(0)]
    assert [k == 0 for k, _ in told] == [False, False, True, True, False, False]
    assert all(weight > 0 for _, weight in told)
    pilot = [s for s in world.run(0)][2]
    pilot.draw(np.arange(6), 4)
    assert pilot.hits.sum() == 0
    for bad in ((-1, 2), (5, 2), (0, 0)):
        with pytest.raises(InvalidInputError, match="outage must lie within"):
            RecordedLog(log, outage=bad)


def test_visits_of_one_rollout_are_refused():
    with pytest.raises(InvalidInputError, match="two rollouts"):
        RecordedLog(coin_log(np.full(3, 0.5), n=1))


def test_extending_a_step_takes_the_prompts_that_come_next():
    log = coin_log(np.full(4, 0.5), visits=3)
    first = next(iter(RecordedLog(log).run(0)))
    assert first.extend(3).tolist() == [4, 5, 6] and first.rows.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert first.extend(10).tolist() == [7, 8, 9, 10, 11] and len(first.extend(1)) == 0
    assert len(first.weight) == len(first.drawn) == 12
    pool = PromptPool([f"q{q}" for q in range(10)], np.linspace(0, 1, 10), batch=4)
    step = next(iter(pool.run(0)))
    before = step.rows.copy()
    step.extend(9)
    assert len(step) == 13 and set(step.rows[:4]) == set(before) and len(set(step.rows[:10].tolist())) == 10


def test_expected_live_groups_against_simulation():
    p = np.array([0.0, 0.02, 0.3, 0.5, 1.0])
    pool = PromptPool(list("abcde"), p, batch=5)
    step = next(iter(pool.run(0)))
    sizes = np.array([2.0, 8.0, 3.0, 5.0, 8.0])
    draws = np.random.default_rng(0).binomial(sizes.astype(int), step.target, (40_000, 5))
    alive = ((draws > 0) & (draws < sizes)).mean(axis=0)
    assert step.live(sizes) == pytest.approx(alive, abs=0.01)
    assert step.live(np.zeros(5)).tolist() == [0] * 5
    recorded = list(all_steps(RecordedLog(coin_log(np.full(1000, 0.3), visits=9)), 0))[4]
    assert recorded.live(np.full(1000, 8.0)).mean() == pytest.approx(1 - 0.7**8 - 0.3**8, abs=0.03)


@pytest.mark.parametrize("draws", ["reference", "common"])
def test_a_seed_gives_the_same_pool(draws):
    pool = PromptPool([str(q) for q in range(40)], np.linspace(0, 1, 40), batch=10, draws=draws)
    runs = [[(s.rows.tolist(), s.learn(np.full(10, 8))[0].tolist()) for s in pool.run(seed)] for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert sorted(q for rows, _ in runs[0][:4] for q in rows) == list(range(40))


def test_common_draws_give_every_rule_the_same_order():
    def orders(draws, size):
        pool = PromptPool([str(q) for q in range(40)], np.linspace(0, 1, 40), batch=10, draws=draws)
        return [s.rows.tolist() for s in all_steps(pool, 1, lambda n: np.full(n, size))]

    assert orders("common", 0) == orders("common", 9)
    assert orders("reference", 0)[:4] == orders("reference", 9)[:4]
    assert orders("reference", 0) != orders("reference", 9)  # groups left out draw no random number


@pytest.mark.parametrize(("p", "batch"), [([0.5, 1.1], 1), ([0.5, 0.5], 3), ([0.5, 0.5], 0), ([0.5], 1)])
def test_pool_refuses(p, batch):
    with pytest.raises(InvalidInputError):
        PromptPool(["a", "b"], p, batch=batch)


def test_drift_events_move_probabilities_as_they_say():
    events = (Event("solved", 0.25, share=0.3), Event("outage", 0.5, length=0.1), Event("jump", 0.75, size=2.0))
    world = DriftingPrompts(prompts=600, batch=100, steps=40, events=events, trend=0.0)
    start, solved, late = (world.probabilities(i) for i in (0, 10, 30))
    moved = solved != start
    assert moved.mean() == pytest.approx(0.3, abs=0.06) and (solved[moved] > 0.97).all()
    logit = np.log(late / (1 - late)) - np.log(solved / (1 - solved))
    assert logit == pytest.approx(2.0)
    assert [world.phase(i) for i in (0, 10, 20, 23, 24, 30)] == [
        ("start", False),
        ("after solved", False),
        ("outage", True),
        ("outage", True),
        ("after outage", False),
        ("after jump", False),
    ]
    told = [(s.phase, s.learn(np.full(100, 8))[0].sum()) for s in world.run(0)]
    assert all((k == 0) == (phase == "outage") for phase, k in told)
    correlation = np.corrcoef(world.embeddings[:, 0], world._logit)[0, 1]
    assert correlation > 0.5


def test_forgotten_prompts_fail_and_bad_events_are_refused():
    world = DriftingPrompts(prompts=300, batch=50, steps=10, events=(Event("forgotten", 0.5, share=0.5),))
    before, after = world.probabilities(0), world.probabilities(9)
    assert (after < 0.03).sum() > (before < 0.03).sum() + 50
    for bad in ({"kind": "lost", "at": 0.5}, {"kind": "jump", "at": 1.0}, {"kind": "solved", "at": 0.1, "share": 0}):
        with pytest.raises(InvalidInputError):
            Event(**bad)
