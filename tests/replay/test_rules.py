"""Each rule does what its paper says: budgets, bounds, probabilities, determinism."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viprl import registry
from viprl.errors import ConfigurationError, InvalidInputError
from viprl.prediction import DiscountedBeta
from viprl.prompts import PromptSet
from viprl.replay import PromptPool, Setting, replay
from viprl.replay.lineup import OWN_RULES, build_rule, default_lineup, parse_rule
from viprl.replay.rules import DAPO, GRESO, GVM, VIGOR, DynaMO, MoPPS, PilotCommit, proportional_sizes
from viprl.variance import RLOO

SETTING = Setting(RLOO())
IDS = [f"q{q}" for q in range(64)]
P = np.linspace(0, 1, 64)


def pool(p=P, batch=None, **options):
    ids = [f"q{q}" for q in range(len(p))]
    return PromptPool(ids, p, batch=batch or len(p), **options)


def first_step(p=P, seed=0):
    step = next(iter(pool(p).run(seed)))
    return step, [f"q{q}" for q in step.rows]


@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=20),
    st.integers(0, 5),
    st.integers(0, 30),
    st.floats(0, 1),
)
def test_proportional_sizes_keep_budget_and_bounds(weights, low, width, share):
    high = low + width
    budget = low * len(weights) + round(share * width * len(weights))
    sizes = proportional_sizes(weights, budget, low, high)
    assert sizes.sum() == budget and sizes.min() >= low and sizes.max() <= high
    inner = (sizes > low) & (sizes < high)
    order = np.argsort(weights, kind="stable")
    assert all(sizes[a] <= sizes[b] + 1 for a, b in itertools.pairwise(order))
    if inner.sum() > 1 and min(np.array(weights)[inner]) > 0.5:
        ratio = sizes[inner] / np.array(weights)[inner]
        assert (np.abs(sizes[inner] - np.array(weights)[inner] * np.median(ratio)) <= 2.5).all()


def test_proportional_sizes_refuse_an_impossible_budget():
    for budget in (5, 100):
        with pytest.raises(InvalidInputError, match="sum of lower bounds"):
            proportional_sizes([1, 1, 1], budget, 3, 8)


@pytest.mark.parametrize("name", sorted(OWN_RULES))
def test_rules_of_their_own_keep_the_budget(name):
    world = pool(batch=32, epochs=3)
    trace = replay(world, build_rule(parse_rule(name), PromptSet(world.prompt_ids), SETTING, 1), SETTING, seed=1)
    again = replay(world, build_rule(parse_rule(name), PromptSet(world.prompt_ids), SETTING, 1), SETTING, seed=1)
    for column in trace.steps:
        if column != "seconds":
            assert trace.steps[column].tolist() == again.steps[column].tolist()
    spent, budget = trace.column("rollouts"), trace.column("budget")
    assert (spent >= budget).all() if name == "dapo" else (spent <= budget).all()
    if name not in ("dapo", "mopps", "greso", "pilot_commit"):
        assert spent.tolist() == budget.tolist()


def test_mopps_trains_the_half_whose_draw_is_nearest_one_half():
    rule = MoPPS(seed=0)
    step, ids = first_step()
    for _ in range(6):
        rule.learn(ids, np.rint(400 * step.target), np.full(64, 400))
    sizes = rule.decide(step, ids, None, SETTING)
    trained = np.sort(step.target[sizes > 0])
    assert len(trained) == 32 and sizes.sum() == step.budget
    assert trained[0] > 0.2 and trained[-1] < 0.8
    assert (
        MoPPS(seed=0).decide(step, ids, None, SETTING).tolist()
        != MoPPS(seed=1).decide(step, ids, None, SETTING).tolist()
    )


def test_mopps_discounts_as_published():
    rule = MoPPS(seed=0, keep=0.5, prior=1.0)
    rule.learn(["a"], np.array([3.0]), np.array([8]))
    rule.learn(["a"], np.array([0.0]), np.array([4]))
    assert rule._posterior["a"] == (0.5 * (0.5 + 0.5 + 3) + 0.5 + 0, 0.5 * (0.5 + 0.5 + 5) + 0.5 + 4)


def test_greso_skips_with_the_published_probability():
    rule = GRESO(seed=3, base=0.5, floor=0.01)
    many = np.zeros(6000)
    ids = [f"q{q}" for q in range(6000)]
    visits = np.arange(6000) % 3  # 0, 1 or 2 dead visits in a row
    for z in (1, 2):
        rows = np.flatnonzero(visits >= z)
        rule.learn([ids[r] for r in rows], np.zeros(len(rows)), np.full(len(rows), 8))
    world = PromptPool(ids, many, batch=6000)
    step = next(iter(world.run(0)))
    sizes = rule.decide(step, [ids[r] for r in step.rows], None, SETTING)
    for z, chance in ((0, 1.0), (1, 0.5), (2, 0.25)):
        assert (sizes[visits[step.rows] == z] > 0).mean() == pytest.approx(chance, abs=0.04)
    rule.learn(["q2"], np.array([4.0]), np.array([8]))  # both outcomes: z starts anew
    assert rule._dead["q2"] == 0
    assert rule._dead["q5"] == 2


def test_gvm_gives_rare_successes_more_and_failures_their_pilot():
    step, ids = first_step()
    sizes = GVM().decide(step, ids, None, SETTING)
    rate = step.hits / step.drawn
    assert (step.drawn == 4).all() and sizes.sum() == step.budget
    weight = 1 / np.sqrt(rate[rate > 0] + 1e-3 / rate[rate > 0])
    assert (sizes[rate == 0] == 4).all()
    means = [sizes[rate == r].mean() for r in (0.25, 0.5, 1.0)]
    assert means == sorted(means, reverse=True) and len(weight)


def test_vigor_feeds_the_largest_observed_variance():
    step, ids = first_step(np.r_[np.zeros(32), np.full(32, 0.5)])
    sizes = VIGOR().decide(step, ids, None, SETTING)
    assert sizes.sum() == step.budget and sizes.max() <= 32
    assert sizes[step.target == 0].max() <= 8 and sizes[step.target == 0.5].mean() > 10
    assert (step.drawn == sizes).all()


def test_pilot_commit_skips_what_the_pilot_calls_dead():
    step, ids = first_step(np.r_[np.zeros(40), np.full(24, 0.5)])
    sizes = PilotCommit().decide(step, ids, None, SETTING)
    rate = step.hits / step.drawn
    committed = (rate >= 0.25) & (rate <= 0.75)
    assert ((sizes > 0) == committed).all() and (sizes[step.target == 0] == 0).all()
    assert sizes.sum() + 4 * (~committed).sum() == step.budget


def test_dapo_samples_until_enough_groups_are_live():
    step, ids = first_step(np.r_[np.zeros(32), np.full(32, 0.5)])
    sizes = DAPO().decide(step, ids, None, SETTING)
    assert (sizes == 8).all() and len(sizes) > 100  # about half are dead, so about twice the prompts
    dead, names = first_step(np.zeros(16))
    assert len(DAPO(rounds=3).decide(dead, names, None, SETTING)) == 16 * 3
    live, names = first_step(np.full(400, 0.5))
    assert len(DAPO().decide(live, names, None, SETTING)) <= 410


def test_dynamo_is_proportional_to_the_unbiased_variance():
    rule = DynaMO()
    step, ids = first_step()
    assert (rule.decide(step, ids, None, SETTING) == 8).all()
    rule.learn(ids, np.rint(100 * step.target), np.full(64, 100))
    sizes = rule.decide(step, ids, None, SETTING)
    assert sizes.sum() == step.budget and sizes.min() >= 4 and sizes.max() <= 24
    assert sizes[np.abs(step.target - 0.5) < 0.2].min() > sizes[step.target < 0.05].max()
    unknown = rule.decide(step, ["new", *ids[1:]], None, SETTING)
    assert 4 <= unknown[0] <= 12


@pytest.mark.parametrize("policy", registry.names("policy"))
def test_every_policy_runs_with_and_without_the_guard(policy):
    world = pool(batch=16)
    for text in (f"{policy}:beta", f"{policy}:beta+guard"):
        if policy in OWN_RULES and policy == "uniform":
            continue
        rule = build_rule(parse_rule(text), PromptSet(world.prompt_ids), SETTING, 0)
        trace = replay(world, rule, SETTING)
        assert trace.column("rollouts").tolist() == trace.column("budget").tolist()


def test_the_guard_tames_a_confident_predictor_and_observes_recorded_counts():
    rng = np.random.default_rng(0)
    p = rng.beta(0.4, 0.5, 300)
    world = PromptPool([f"q{q}" for q in range(300)], p, batch=100, epochs=12)
    prompts = PromptSet(world.prompt_ids)
    ratio = {}
    for text in ("inverse_variance:last_rate", "inverse_variance:last_rate+guard"):
        trace = replay(world, build_rule(parse_rule(text), prompts, SETTING, 0), SETTING)
        ratio[text] = trace.column("variance").sum() / trace.column("uniform").sum()
    assert ratio["inverse_variance:last_rate"] > 1.5
    assert ratio["inverse_variance:last_rate+guard"] < 1.1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "a rule's `policy` must be one of"),
        ("vip:nothing", "`predictor` must be one of"),
        ("vip:beta+belt", "only addition"),
        ("dapo:beta", "neither a predictor nor a guard"),
        ("uniform+guard", "neither a predictor nor a guard"),
    ],
)
def test_wrong_names_are_refused(text, message):
    with pytest.raises(ConfigurationError, match=message):
        parse_rule(text)


def test_names_are_canonical_and_predictors_buildable():
    assert parse_rule(" vip ").text == "vip:calibrated"
    assert parse_rule("knapsack_rl").text == "knapsack_rl:last_rate"
    assert parse_rule("vip:beta+guard").guarded
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(64, 8)).astype(np.float32)
    prompts = PromptSet(tuple(IDS), [f"text {i}" for i in IDS], vectors)
    for name in registry.names("predictor"):
        rule = build_rule(parse_rule(f"vip:{name}"), prompts, SETTING, 0)
        assert len(rule.predict(IDS[:5])) == 5 and rule.source
    assert len(default_lineup(prompts, pool())) >= 16
    assert parse_rule("knapsack:discounted_beta").text == "knapsack_rl:beta"
    with pytest.raises(ConfigurationError, match="needs embeddings"):
        build_rule(parse_rule("vip:gp"), PromptSet(tuple(IDS)), SETTING, 0)
    assert isinstance(build_rule(parse_rule("vip:beta"), prompts, SETTING, 0).predictor, DiscountedBeta)
