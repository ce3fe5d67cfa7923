"""Rows find their plan whatever verl did to the batch, and missing rewards are counted."""

from __future__ import annotations

import numpy as np
import pytest

import viprl
from viprl.errors import ConfigurationError, InvalidInputError, PlanError
from viprl.integrations.verl.ledger import (
    Answer,
    MissingRewardsError,
    PlanLedger,
    extra_rewards,
    parse_key,
    repair_score_metrics,
)
from viprl.plan import Plan


def make_plan(ids: list[str], budget: int) -> Plan:
    allocator = viprl.RolloutAllocator(viprl.DiscountedBeta(), viprl.RLOO(), min_group_size=2, max_group_size=9)
    return allocator.allocate(ids, budget)


def code(prompt: int, session: int) -> float:
    """A reward that names its prompt and its session."""
    return prompt * 100.0 + session


def groups_of(answer: Answer) -> list[list[float]]:
    """The rewards present, group by group."""
    parts = np.split(answer.rewards, np.cumsum(answer.plan.group_sizes)[:-1])
    return [part[~np.isnan(part)].tolist() for part in parts]


def rows_of(plan: Plan, uids: list[str]) -> list[tuple[str, int, float]]:
    return [
        (uid, session, code(int(prompt[1:]), session))
        for uid, (prompt, size) in zip(uids, plan, strict=True)
        for session in range(size)
    ]


def test_shuffled_refilled_and_failed_rows_never_cross_prompts() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        ledger = PlanLedger()
        first, refill = make_plan(["p1", "p2", "p1", "p3"], 16), make_plan(["p4", "p5"], 7)
        uids = [[f"a{i}" for i in range(4)], [f"b{i}" for i in range(2)]]
        ledger.open(first, uids[0])
        ledger.open(refill, uids[1])  # a submission that replaces failed groups: another size, later
        rows = rows_of(first, uids[0]) + rows_of(refill, uids[1])
        rows = [rows[i] for i in rng.permutation(len(rows)) if rng.random() > 0.2]
        answers = ledger.settle(
            [uid for uid, _, _ in rows],
            [reward for _, _, reward in rows],
            np.ones(len(rows)),
            squared_norms=[2 * reward for _, _, reward in rows],
            max_missing=1.0,
            step=1,
        )
        assert [answer.plan for answer in answers] == [first, refill]
        assert len(ledger) == 0
        for answer, names in zip(answers, uids, strict=True):
            np.testing.assert_array_equal(answer.squared_norms, 2 * answer.rewards)  # NaN in the same places
            for position, ((prompt, size), group) in enumerate(zip(answer.plan, groups_of(answer), strict=True)):
                assert all(reward // 100 == int(str(prompt)[1:]) for reward in group)
                assert sorted(group) == sorted(r for uid, _, r in rows if uid == names[position])
                assert answer.tokens[position] == len(group) <= size
            assert answer.missing == answer.planned - sum(map(len, groups_of(answer)))


def test_the_same_prompt_twice_keeps_two_groups() -> None:
    ledger = PlanLedger()
    plan = make_plan(["p1", "p1"], 6)
    ledger.open(plan, ["x", "y"])
    (answer,) = ledger.settle(["y", "x", "y"], [1.0, 0.0, 1.0], [3, 2, 3], max_missing=1.0, step=1)
    assert groups_of(answer) == [[0.0], [1.0, 1.0]]
    np.testing.assert_array_equal(answer.rewards, [0.0, np.nan, np.nan, 1.0, 1.0, np.nan])
    assert np.isnan(answer.squared_norms).all()  # none were measured
    assert answer.tokens.tolist() == [2, 6]


def test_nan_is_missing_and_tokens_still_count() -> None:
    ledger = PlanLedger()
    ledger.open(make_plan(["p1"], 4), ["x"])
    (answer,) = ledger.settle(["x"] * 4, [1.0, np.nan, 0.0, np.nan], [2] * 4, max_missing=0.5, step=1)
    assert groups_of(answer) == [[1.0, 0.0]]
    assert (answer.planned, answer.missing, answer.tokens.tolist()) == (4, 2, [8])


def test_a_norm_without_a_reward_keeps_its_place() -> None:
    ledger = PlanLedger()
    ledger.open(make_plan(["p1", "p2"], 6), ["x", "y"])
    (answer,) = ledger.settle(
        ["y", "x", "y", "x", "x"],
        [1.0, np.nan, 0.0, 1.0, 0.0],
        [1] * 5,
        squared_norms=[5.0, 6.0, np.nan, 7.0, 8.0],
        max_missing=1.0,
        step=1,
    )
    np.testing.assert_array_equal(answer.rewards, [np.nan, 1.0, 0.0, 1.0, 0.0, np.nan])
    np.testing.assert_array_equal(answer.squared_norms, [6.0, 7.0, 8.0, 5.0, np.nan, np.nan])


def test_more_rows_than_planned_are_an_error() -> None:
    ledger = PlanLedger()
    ledger.open(make_plan(["p1"], 4), ["x"])
    with pytest.raises(PlanError, match="'x' of step 3 has more than 4"):
        ledger.settle(["x"] * 5, [1.0] * 5, [1] * 5, max_missing=1.0, step=3)


def test_too_many_missing_rewards_stop_the_run_with_the_numbers() -> None:
    ledger = PlanLedger()
    ledger.open(make_plan(["p1", "p2"], 8), ["x", "y"])
    with pytest.raises(MissingRewardsError, match=r"5 / 8 = 0\.625 > 0\.6 in step 7 \(1 prompts have no"):
        ledger.settle(["x", "x", "x", "y"], [1.0, 0.0, 1.0, np.nan], [1] * 4, max_missing=0.6, step=7)


def test_unknown_rows_and_reused_uids_are_errors() -> None:
    ledger = PlanLedger()
    ledger.open(make_plan(["p1"], 4), ["x"])
    with pytest.raises(PlanError, match="one new uid per group"):
        ledger.open(make_plan(["p1"], 4), ["x"])
    with pytest.raises(PlanError, match="'z' of step 3"):
        ledger.settle(["z"], [1.0], [1], max_missing=1.0, step=3)


def test_order_is_by_plan_position_and_session() -> None:
    ledger = PlanLedger()
    ledger.open(make_plan(["p1", "p2"], 8), ["x", "y"])
    keys = ["y_1_0", f"pad{'0' * 32}_0_0", "x_10_0", "x_2_0", "y_0_0"]
    assert [keys[i] for i in ledger.order(keys)] == ["x_2_0", "x_10_0", "y_0_0", "y_1_0", keys[1]]


def test_sessions_with_several_outputs_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="one output per session"):
        PlanLedger().order(["x_0_0", "x_0_1"])


def test_keys() -> None:
    assert parse_key("a_b_12_0") == ("a_b", 12, 0)
    for wrong in ("x", "x_1", "x_a_0"):
        with pytest.raises(InvalidInputError, match="uid_session_output"):
            parse_key(wrong)


def test_score_metrics_are_those_of_the_rewards_present() -> None:
    metrics = {"critic/score/mean": float("nan"), "critic/rewards/max": float("nan"), "actor/lr": 1.0}
    repair_score_metrics(metrics, [1.0, np.nan, 0.0, 1.0])
    assert metrics == {"critic/score/mean": pytest.approx(2 / 3), "critic/rewards/max": 1.0, "actor/lr": 1.0}


def test_successes_by_name_and_by_a_threshold():
    fields = [{"reward_extra_info": info} for info in ({"acc": 0.6}, {"acc": None}, {}, {"acc": 0.5}, {"acc": 0.2})]
    np.testing.assert_array_equal(extra_rewards(fields, "acc"), [0.6, np.nan, np.nan, 0.5, 0.2])
    np.testing.assert_array_equal(extra_rewards(fields, "acc", 0.5), [1, np.nan, np.nan, 1, 0])
    with pytest.raises(ConfigurationError, match="'accuracy'; names: \\['acc'\\]"):
        extra_rewards(fields, "accuracy", 0.5)
