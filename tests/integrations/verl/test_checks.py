"""Refused at start: the rule, the numbers and the remedy in the message."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from viprl.errors import ConfigurationError, InfeasibleBudgetError
from viprl.integrations.verl.budget import StepBudget, batches_offered, data_parallel_size
from viprl.integrations.verl.checks import check_config
from viprl.integrations.verl.learned import token_aggregation
from viprl.integrations.verl.options import AdaptiveOptions
from viprl.integrations.verl.weights import judge_loss

Make = Callable[..., dict[str, Any]]


def test_defaults_spend_what_stock_verl_spends(make_config: Make) -> None:
    settings = check_config(make_config())
    assert settings.budget == StepBudget(8, 32, 3, 16, 32)
    assert (settings.settings.estimator, settings.equal_weights) == ("rloo", True)


def test_bounds_default_to_the_mean_group_size(make_config: Make) -> None:
    budget = check_config(make_config({"actor_rollout_ref.rollout.n": 2})).budget
    assert (budget.min_group_size, budget.max_group_size) == (2, 8)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("algorithm.filter_groups.enable", "one by one"),
        ("trainer.v1.sampler.sync_refill_failed_groups", "one by one"),
        ("trainer.v1.sampler.custom_sampler.path", "outside the step's plan"),
        ("skip.rollout_tq.enable", "no plan"),
    ],
)
def test_refuses_what_breaks_a_plan(make_config: Make, path: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=path.replace(".", r"\.")) as error:
        check_config(make_config({path: True}))
    assert says in str(error.value)


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus", "remax", "gdpo", "opo", "grpo_passk", "typo"])
def test_refuses_estimators_that_mix_prompts(make_config: Make, name: str) -> None:
    with pytest.raises(ConfigurationError, match="viprl_rloo"):
        check_config(make_config({"algorithm.adv_estimator": name}))


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_verls_estimators_need_groups_of_two(make_config: Make, name: str) -> None:
    changes = {"algorithm.adv_estimator": name, "viprl.min_group_size": 1}
    with pytest.raises(ConfigurationError, match="group of one its raw reward"):
        check_config(make_config(changes))
    settings = check_config(make_config({"algorithm.adv_estimator": name}))
    assert settings.settings.estimator == name and not settings.equal_weights


def test_verls_grpo_without_deviation_is_dr_grpo(make_config: Make) -> None:
    changes = {"algorithm.adv_estimator": "grpo", "algorithm.norm_adv_by_std_in_grpo": False}
    assert check_config(make_config(changes)).settings.estimator == "dr_grpo"


def test_unequal_weights_are_said(make_config: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="viprl"):
        settings = check_config(make_config({"algorithm.adv_estimator": "viprl_rloo_rollout"}))
    assert not settings.equal_weights
    assert "n_q/C" in caplog.text


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        ({"viprl.budget": 33}, ["33", "lcm(1, 8 * 4) = 32", "32 or 64"]),
        ({"viprl.budget": 32, "actor_rollout_ref.actor.ppo_mini_batch_size": 6}, ["32", "24", "24 or 48"]),
        ({"trainer.n_gpus_per_node": 5}, ["8 * 4 = 32 rows for 5 ranks"]),
        ({"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 7}, ["32 / 1 = 32", "micro-batches of 7"]),
        ({"data.gen_batch_size": 3}, ["8 and 3"]),
    ],
)
def test_budget_against_batch_sizes(make_config: Make, changes: dict[str, Any], numbers: list[str]) -> None:
    with pytest.raises(ConfigurationError) as error:
        check_config(make_config(changes))
    for number in numbers:
        assert number in str(error.value)


def test_micro_batches_are_free_with_dynamic_batches(make_config: Make) -> None:
    changes = {
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 7,
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
    }
    check_config(make_config(changes))


@pytest.mark.parametrize("bounds", [{"viprl.min_group_size": 5}, {"viprl.max_group_size": 3}])
def test_budget_outside_the_bounds(make_config: Make, bounds: dict[str, int]) -> None:
    with pytest.raises(InfeasibleBudgetError, match=r"budget / prompts = 32 / 8"):
        check_config(make_config(bounds))


def test_larger_budgets_are_several_mini_batches(make_config: Make) -> None:
    settings = check_config(make_config({"viprl.budget": 64}))
    assert settings.budget.rollouts == 64


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({"trainer.n_gpus_per_node": 8, "trainer.nnodes": 2}, 16),
        ({"trainer.n_gpus_per_node": 8, "actor_rollout_ref.actor.ulysses_sequence_parallel_size": 4}, 2),
        (
            {
                "trainer.n_gpus_per_node": 8,
                "actor_rollout_ref.actor.strategy": "megatron",
                "actor_rollout_ref.actor.megatron.tensor_model_parallel_size": 2,
                "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size": 2,
            },
            2,
        ),
    ],
)
def test_data_parallel_size(make_config: Make, changes: dict[str, Any], size: int) -> None:
    assert data_parallel_size(make_config(changes)) == size


def test_a_submission_of_another_size_gets_its_share() -> None:
    budget = StepBudget(8, 32, 3, 16, 32)
    assert budget.of(8) == 32
    assert budget.of(3) == 12
    assert StepBudget(4, 22, 5, 6, 22).of(1) == 6  # 5.5, rounded to even, within the bounds
    assert StepBudget(4, 21, 5, 6, 21).of(2) == 10


@pytest.mark.parametrize("n", [None, 0, "4"])
def test_the_mean_group_size_must_be_there(make_config: Make, n: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"actor_rollout_ref\.rollout\.n must be a positive integer"):
        check_config(make_config({"actor_rollout_ref.rollout.n": n}))


def test_what_follows_the_estimator_is_not_given_twice(make_config: Make) -> None:
    with pytest.raises(ConfigurationError, match=r"viprl\.estimator follows algorithm\.adv_estimator"):
        check_config(make_config({"viprl.estimator": "rloo"}))


def test_filtering_is_replaced_by_selection(make_config: Make) -> None:
    with pytest.raises(ConfigurationError, match=r"filter_groups\.enable must be off.*set \+viprl\.candidates=4"):
        check_config(make_config({"algorithm.filter_groups.enable": True}))


@pytest.mark.parametrize("name", ["rloo", "grpo"])
def test_only_our_estimators_weigh_prompts(make_config: Make, name: str) -> None:
    changes = {"viprl.candidates": 4, "viprl.selection": "unbiased"}
    with pytest.raises(ConfigurationError, match=f"unbiased weighs prompts.*'{name}' cannot; use one of viprl_dr_grpo"):
        check_config(make_config({**changes, "algorithm.adv_estimator": name}))
    check_config(make_config({**changes, "algorithm.adv_estimator": f"viprl_{name}"}))
    check_config(make_config({**changes, "algorithm.adv_estimator": name, "viprl.candidates": 1}))


@pytest.mark.parametrize(
    ("rows", "fetch", "offered"), [(33, 8, 4), (31, 8, 3), (17, 8, 2), (12, 8, 1), (23, 4, 2), (24, 4, 3), (3, 8, 1)]
)
def test_a_step_is_offered_what_an_epoch_has(make_config: Make, rows: int, fetch: int, offered: int) -> None:
    assert batches_offered(make_config({"data.gen_batch_size": fetch}), 4, rows) == offered


def test_unknown_options_are_refused(make_config: Make) -> None:
    with pytest.raises(ConfigurationError, match="bugdet"):
        AdaptiveOptions.from_config(make_config({"viprl.bugdet": 3}))


@pytest.mark.parametrize(
    "changes",
    [
        {"viprl.budget": 0},
        {"viprl.budget": 2.5},
        {"viprl.max_missing": 1.5},
        {"viprl.max_missing": "0.5"},
        {"viprl.reward_values": [0]},
        {"viprl.variance": "guessed"},
    ],
)
def test_values_of_options_are_checked(make_config: Make, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(changes)).removeprefix("viprl.")):
        AdaptiveOptions.from_config(make_config(changes))


def test_lists_become_tuples(make_config: Make) -> None:
    options = AdaptiveOptions.from_config(
        make_config({"viprl.side_information": "pass_rate", "viprl.reward_values": [-1, 1]})
    )
    assert options.settings.side_information == ("pass_rate",)
    assert options.settings.reward_values == (-1, 1)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"algorithm.adv_estimator": "viprl_grpo"}, "rloo and dr_grpo, but got estimator='grpo'"),
        ({"algorithm.adv_estimator": "grpo"}, "rloo and dr_grpo, but got estimator='grpo'"),
        ({"viprl.predictor": "reward_variance"}, "tells success from failure"),
        ({"viprl.policy": "relaxed"}, "cannot solve"),
        ({"viprl.success_reward": "acc"}, "takes the success"),
    ],
)
def test_what_the_learned_variance_is_not_derived_for(make_config: Make, changes: dict[str, Any], says: str) -> None:
    check_config(make_config(changes))
    with pytest.raises(ConfigurationError, match=says):
        check_config(make_config({**changes, "viprl.variance": "learned"}))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm.adv_estimator": "viprl_dr_grpo_rollout"},
        {"algorithm.adv_estimator": "grpo", "algorithm.norm_adv_by_std_in_grpo": False},
        # the log-probabilities are the policy's own: a KL term enters neither them nor the formula
        {"actor_rollout_ref.actor.use_kl_loss": True},
        {"algorithm.use_kl_in_reward": True},
    ],
)
def test_what_the_learned_variance_takes(make_config: Make, changes: dict[str, Any]) -> None:
    assert check_config(make_config({**changes, "viprl.variance": "learned"})).learns_variance
    assert check_config(make_config(changes)).learns_variance  # auto
    assert not check_config(make_config({**changes, "viprl.variance": "formula"})).learns_variance


@pytest.mark.parametrize(
    ("aggregation", "loss", "expected"),
    [
        ("token-mean", "vanilla", "sum"),
        ("token-sum", "vanilla", "sum"),
        ("seq-mean-token-sum", "gspo", "sum"),
        ("seq-mean-token-sum-norm", "vanilla", "sum"),
        ("seq-mean-token-mean", "vanilla", "mean"),
        ("seq-mean-token-mean", "gspo", "mean"),
        ("token-mean", "sapo", "mean"),
        ("token-sum", "geo_mean", "mean"),
    ],
)
def test_which_losses_divide_a_rollout_by_its_tokens(
    make_config: Make, aggregation: str, loss: str, expected: str
) -> None:
    actor = "actor_rollout_ref.actor"
    config = make_config({f"{actor}.loss_agg_mode": aggregation, f"{actor}.policy_loss.loss_mode": loss})
    assert token_aggregation(config) == expected


# ---------------------------------------------------------------- the table of loss settings


@pytest.mark.parametrize(
    ("aggregation", "loss", "mini_batches", "dynamic", "level"),
    [
        ("token-sum", "vanilla", 4, False, "exact"),
        ("seq-mean-token-sum", "vanilla", 4, True, "exact"),
        ("seq-mean-token-sum-norm", "gspo", 1, False, "exact"),
        ("seq-mean-token-mean", "cispo", 1, False, "exact"),
        ("token-mean", "vanilla", 1, False, "exact"),
        ("token-mean", "vanilla", 2, False, "mini-batch"),
        ("token-mean", "sapo", 2, False, "exact"),
        ("token-mean", "clip_cov", 1, False, "warn"),
        ("token-mean", "someone_elses", 1, False, "warn"),
        ("token-mean", "geo_mean", 1, False, "exact"),
        ("token-mean", "geo_mean", 1, True, "refuse"),
        ("batch-mean", "vanilla", 1, False, "refuse"),
    ],
)
def test_table(aggregation: str, loss: str, mini_batches: int, dynamic: bool, level: str) -> None:
    verdict = judge_loss(aggregation, loss, mini_batches=mini_batches, dynamic_batches=dynamic)
    assert verdict.level == level
    assert (verdict.reason == "") == (level == "exact")


def test_refused_loss_stops_the_run_unless_weights_are_not_asked_for(make_config: Make) -> None:
    changes = {
        "actor_rollout_ref.actor.policy_loss.loss_mode": "geo_mean",
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
    }
    with pytest.raises(ConfigurationError, match=r"use_dynamic_bsz=false.*_rollout"):
        check_config(make_config(changes))
    check_config(make_config({**changes, "algorithm.adv_estimator": "viprl_rloo_rollout"}))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"actor_rollout_ref.actor.use_kl_loss": True}, "KL loss"),
        ({"actor_rollout_ref.actor.entropy_coeff": 0.01}, "entropy bonus"),
        ({"algorithm.rollout_correction.rollout_rs": "token_k1"}, "rollout_rs"),
        (
            {
                "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
                "actor_rollout_ref.actor.ppo_mini_batch_size": 4,
            },
            "2 mini-batches",
        ),
    ],
)
def test_terms_that_count_rollouts_are_warned_about(
    make_config: Make, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], says: str
) -> None:
    with caplog.at_level(logging.WARNING, logger="viprl"):
        check_config(make_config(changes))
    assert says in caplog.text


def test_a_clean_run_warns_about_nothing(make_config: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="viprl"):
        check_config(make_config())
    assert not caplog.text
