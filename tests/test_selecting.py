"""Selection and allocation as one decision of the allocator."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import viprl
from viprl.errors import InfeasibleBudgetError, InvalidInputError
from viprl.selection import Learnability, SelectionPolicy, Top, Unbiased, UniformSelection

POLICIES = (Learnability(), Top(), Unbiased(), UniformSelection())


def pool(size: int = 240, dead: float = 0.6, seed: int = 0) -> dict[str, float]:
    draws = np.random.default_rng(seed)
    rates = np.where(draws.random(size) < dead, 0.0, draws.uniform(0.1, 0.9, size))
    return {f"q{i}": float(p) for i, p in enumerate(rates)}


def make(policy: SelectionPolicy | None = None, **more: object) -> viprl.RolloutAllocator:
    return viprl.RolloutAllocator(viprl.DiscountedBeta(), viprl.RLOO(), selection=policy, **more)  # type: ignore[arg-type]


def run(allocator: viprl.RolloutAllocator, rates: dict[str, float], steps: int) -> list[viprl.Plan]:
    ids, plans = list(rates), []
    for _ in range(steps):
        draws = np.random.default_rng([7, allocator.step])
        plan = allocator.select([ids[i] for i in draws.permutation(len(ids))[:128]], 256)
        rewards = [(draws.random(n) < rates[str(i)]).astype(float) for i, n in plan]
        allocator.observe(plan, rewards)
        plans.append(plan)
    return plans


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_plans_are_exact_and_in_the_candidates_order(policy: SelectionPolicy) -> None:
    for plan in run(make(policy), pool(), 12):
        assert plan.selected is not None and len(plan.selected) == 128
        assert plan.group_sizes.sum() == 256 and plan.group_sizes.min() >= 3
        assert plan.prompt_ids == tuple(plan.selected.candidate_ids[q] for q in plan.kept)
        assert (np.diff(plan.kept) > 0).all() and len(plan.left_out) == 128 - len(plan)
        assert set(plan.prompt_ids).isdisjoint(left.prompt_id for left in plan.left_out)


def test_dead_prompts_lose_their_rollouts_and_come_back_now_and_then() -> None:
    rates = pool()
    allocator = make()
    plans = run(allocator, rates, 60)
    dead = [np.mean([rates[str(i)] == 0 for i in plan.prompt_ids]) for plan in plans]
    assert np.mean(dead[:3]) > 0.4 and np.mean(dead[-20:]) < 0.3
    assert {i for plan in plans[10:] for i in plan.prompt_ids if rates[str(i)] == 0}
    assert allocator.metrics()["viprl/visited_share"] > 0.3


def test_nobody_waits_for_ever() -> None:
    rates = pool(dead=0.8)
    allocator = make(Top(floor=0.0, max_rest=2.0))
    seen: dict[str, int] = {}
    for step, plan in enumerate(run(allocator, rates, 120)):
        seen.update((str(i), step) for i in plan.prompt_ids)
    assert set(seen) == set(rates) and min(seen.values()) > 20


def test_the_number_of_prompts_can_be_given() -> None:
    allocator = make()
    ids = list(pool())
    for policy in POLICIES:
        assert len(make(policy).select(ids, 256, prompts=32)) == 32
    with pytest.raises(InfeasibleBudgetError, match=r"prompts \* min_group_size <= budget"):
        allocator.select(ids, 256, prompts=100)
    with pytest.raises(InfeasibleBudgetError, match="candidates=2"):
        allocator.select(ids[:2], 256)
    with pytest.raises(InvalidInputError, match="at least one prompt"):
        allocator.select([], 256)


def test_uniform_selection_is_the_trainers_step() -> None:
    plan = make(UniformSelection(), candidates=4).select(list(pool())[:128], 256)
    assert len(plan) == 32 and set(plan.group_sizes.tolist()) == {8}


def test_unbiased_weights_reach_the_advantages() -> None:
    allocator = make(Unbiased())
    plan = run(allocator, pool(), 20)[-1]
    assert plan.prompt_weights.std() > 0
    rewards = np.random.default_rng(0).integers(0, 2, 256).astype(float)
    plain = viprl.group_advantages(rewards, plan, "rloo", prompt_weighting="equal")
    np.testing.assert_allclose(plan.advantages(rewards), plain * plan.prompt_weights[plan.rows()])


def test_every_candidate_is_explained() -> None:
    plan = run(make(), pool(), 20)[-1]
    assert plan.selected is not None
    for prompt_id in plan.selected.candidate_ids:
        words = plan.explain(prompt_id)
        assert ("left out" in words) == (prompt_id not in plan.prompt_ids)
    reasons = {left.reason.split(", ")[-1][:9] for left in plan.left_out}
    assert reasons <= {"below the", "but other"}
    with pytest.raises(InvalidInputError, match="'elsewhere'"):
        plan.explain("elsewhere")


def test_history_says_what_was_selected() -> None:
    allocator = make()
    run(allocator, pool(), 15)
    rows = allocator.history_rows()
    assert {row["candidates"] for row in rows} == {128} and {row["kept_for"] for row in rows} <= {
        "value", "exploration", "rest", "uniform",
    }  # fmt: skip
    assert all(row["waited"] >= 0 and row["price"] > 0 for row in rows)


class Backwards(viprl.DiscountedBeta):
    """Sure of the opposite of what it saw."""

    def observe(self, ids: object, successes: object, rollouts: object) -> None:
        n = np.asarray(rollouts, dtype=float) * 40
        super().observe(ids, np.where(np.asarray(successes) > 0, 0.02, 0.5) * n, n)  # type: ignore[arg-type]


def test_a_predictor_that_misleads_is_put_aside() -> None:
    """While the guard holds, prompts are drawn uniformly in groups of the trainer's size."""
    allocator = viprl.RolloutAllocator(Backwards(), viprl.RLOO())
    rates = {f"q{i}": float(p) for i, p in enumerate(np.random.default_rng(3).choice([0.03, 0.5], 200))}
    plans = run(allocator, rates, 80)
    held = [plan for plan in plans if plan.selected is not None and plan.selected.paused]
    assert held, "the guard never held"
    for plan in held:
        assert len(plan) == 32 and set(plan.group_sizes.tolist()) == {8}


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), steps=st.integers(0, 9), name=st.sampled_from(POLICIES))
def test_a_restored_allocator_selects_the_same(seed: int, steps: int, name: SelectionPolicy) -> None:
    rates = pool(seed=seed)
    first = make(name)
    run(first, rates, steps)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.viprl"
        first.save(path)
        second = viprl.RolloutAllocator.load(path, viprl.DiscountedBeta(), viprl.RLOO(), selection=name)
    for one, other in zip(run(first, rates, 4), run(second, rates, 4), strict=True):
        assert one.key == other.key and one.selected is not None and other.selected is not None
        np.testing.assert_array_equal(one.selected.reason, other.selected.reason)


def test_selecting_changes_nothing() -> None:
    allocator = make()
    run(allocator, pool(), 5)
    before = io.StringIO(repr(allocator.state_dict())).getvalue()
    keys = {allocator.select(list(pool()), 256).key for _ in range(3)}
    assert len(keys) == 1 and repr(allocator.state_dict()) == before


def test_real_rewards_are_selected_by_their_spread() -> None:
    predictor = viprl.RewardVariancePredictor()
    allocator = viprl.RolloutAllocator(predictor, viprl.RLOO())
    draws = np.random.default_rng(0)
    spread = {f"q{i}": float(s) for i, s in enumerate(draws.choice([0.0, 3.0], 160))}
    for _ in range(12):
        plan = allocator.select(list(spread), 256)
        allocator.observe(plan, [draws.normal(0, spread[str(i)], n) for i, n in plan])
    assert np.mean([spread[str(i)] > 0 for i in allocator.select(list(spread), 256).prompt_ids]) > 0.75
