"""The registered estimators against verl's own and against hand computations, and the table of loss settings."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl.protocol")  # tests/integrations/verl alone would pass for a package "verl"
import torch
from verl.trainer.ppo import core_algos
from verl.workers.config import FSDPActorConfig
from verl.workers.config.actor import PolicyLossConfig

from viprl.integrations.verl.advantages import ESTIMATORS, is_padding
from viprl.integrations.verl.weights import EXACT_AGGREGATIONS, LINEAR_LOSSES, MINI_BATCH_AGGREGATIONS

pytestmark = pytest.mark.verl

PAD = "pad" + "0" * 32


def batch(groups: dict[str, list[float]], length: int = 4, seed: int = 0) -> dict[str, Any]:
    """Rows in random order; the reward sits on the last valid token."""
    rng = np.random.default_rng(seed)
    rows = [(uid, reward) for uid, rewards in groups.items() for reward in rewards]
    rows = [rows[i] for i in rng.permutation(len(rows))]
    mask = torch.zeros(len(rows), length)
    rewards = torch.zeros(len(rows), length)
    for i, (_, reward) in enumerate(rows):
        tokens = int(rng.integers(1, length + 1))
        mask[i, :tokens] = 1
        rewards[i, tokens - 1] = reward
    return {
        "token_level_rewards": rewards,
        "response_mask": mask,
        "index": np.array([uid for uid, _ in rows], dtype=object),
    }


def first(values: torch.Tensor) -> list[float]:
    return values[:, 0].tolist()


@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        ("viprl_rloo", "rloo", {}),
        ("viprl_rloo", "rloo_vectorized", {}),
        ("viprl_grpo", "grpo", {}),
        ("viprl_grpo", "grpo_vectorized", {}),
        ("viprl_dr_grpo", "grpo", {"norm_adv_by_std_in_grpo": False}),
        ("viprl_dr_grpo", "grpo_vectorized", {"norm_adv_by_std_in_grpo": False}),
    ],
)
@pytest.mark.parametrize("suffix", ["", "_rollout"])
def test_equal_groups_give_verls_own_advantages(ours: str, theirs: str, settings: dict[str, Any], suffix: str) -> None:
    rng = np.random.default_rng(1)
    # rewards in {0, 1} and real ones; constant groups stay out: there verl divides rounding by rounding
    groups = {f"u{q}": [1.0, 0.0, *rng.integers(0, 2, 4).astype(float)] for q in range(6)}
    groups |= {f"v{q}": rng.normal(size=6).tolist() for q in range(6)}
    data = batch(groups)
    expected, _ = core_algos.get_adv_estimator_fn(theirs)(**{**data, **settings})
    actual, returns = core_algos.get_adv_estimator_fn(ours + suffix)(**data)
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=0)
    assert torch.equal(actual, returns)
    assert actual.dtype == expected.dtype


def test_all_are_registered() -> None:
    for name, function in ESTIMATORS.items():
        assert core_algos.get_adv_estimator_fn(name) is function
    assert sorted(ESTIMATORS) == sorted(
        f"viprl_{name}{suffix}" for name in ("dr_grpo", "rloo", "grpo", "maxrl") for suffix in ("", "_rollout")
    )


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_unequal_groups_by_hand(name: str) -> None:
    groups = {
        "a": [1.0, 0.0, 0.0, 1.0, 1.0],
        "b": [0.0, 1.0],
        "c": [1.0, math.nan, 0.0],
        "one": [1.0],
        "dead": [1.0] * 4,
    }
    data = batch({**groups, PAD: [0.0] * 3, "gone": [math.nan]})
    actual = first(ESTIMATORS[name](**data)[0])
    present = {uid: [r for r in rewards if not math.isnan(r)] for uid, rewards in groups.items()}
    total, prompts = sum(map(len, present.values())), len(present)
    rewards = data["token_level_rewards"].sum(-1).tolist()
    for uid, reward, advantage in zip(data["index"], rewards, actual, strict=True):
        others = present.get(uid, [])
        if math.isnan(reward) or is_padding(uid) or len(others) < 2:
            assert advantage == 0.0
            continue
        n, mean = len(others), sum(others) / len(others)
        expected = reward - mean
        if "rloo" in name:
            expected = reward - (sum(others) - reward) / (n - 1)
        elif "viprl_grpo" in name:
            expected /= math.sqrt(sum((r - mean) ** 2 for r in others) / (n - 1)) + 1e-6
        elif "maxrl" in name:
            expected /= mean
        if not name.endswith("_rollout"):
            expected *= total / prompts / n
        assert advantage == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_equal_rewards_give_exactly_zero(name: str) -> None:
    # 0.35 is no float32: means leave a residue that a division by a standard deviation would blow up
    data = batch({"a": [0.35] * 8, "b": [5.0] * 3})
    assert set(first(ESTIMATORS[name](**data)[0])) == {0.0}


def test_a_batch_without_any_reward_is_a_zero_update() -> None:
    data = batch({"a": [math.nan] * 3, PAD: [0.0]})
    for function in ESTIMATORS.values():
        assert not function(**data)[0].any()


def test_padding_is_known_by_its_uid_alone() -> None:
    assert is_padding(PAD)
    assert not any(is_padding(uid) for uid in ("pad", "padding", "pad" + "g" * 32, 3, "a" * 35))


# ---------------------------------------------------------------- gradients


def actor_config(loss: str, aggregation: str, rows: int, tokens: float) -> FSDPActorConfig:
    policy = PolicyLossConfig(loss_mode=loss)
    if loss == "dro":
        policy = dataclasses.replace(policy, dro_beta=0.1)
    if loss == "bypass_mode":
        policy = dataclasses.replace(policy, rollout_correction={"loss_type": "ppo_clip"})
    config = FSDPActorConfig(
        strategy="fsdp",
        rollout_n=4,
        ppo_micro_batch_size_per_gpu=4,
        loss_agg_mode=aggregation,
        policy_loss=policy,
        loss_scale_factor=7 if aggregation == "seq-mean-token-sum-norm" else None,
    )
    config.global_batch_info.update(
        dp_size=1, batch_num_tokens=tokens, global_batch_size=rows, loss_scale_factor=config.loss_scale_factor
    )
    return config


def loss_gradient(
    loss: str, aggregation: str, advantages: torch.Tensor, mask: torch.Tensor, micro: list[slice]
) -> torch.Tensor:
    """Gradient of the step's loss in every token's log-probability, micro-batch by micro-batch as the engine does."""
    old = torch.linspace(-2.0, -0.1, mask.numel(), dtype=torch.float64).reshape(mask.shape)
    log_prob = old.clone().requires_grad_()
    config = actor_config(loss, aggregation, len(mask), float(mask.sum()))
    for rows in micro:
        value, _ = core_algos.get_policy_loss_fn(loss)(
            old_log_prob=old[rows],
            log_prob=log_prob[rows],
            advantages=advantages[rows],
            response_mask=mask[rows],
            loss_agg_mode=aggregation,
            config=config,
            rollout_is_weights=None,
        )
        value.backward()
    assert log_prob.grad is not None
    return log_prob.grad


def very_unequal() -> tuple[dict[str, Any], dict[str, list[int]]]:
    rng = np.random.default_rng(3)
    groups = {f"u{q}": [1.0, 0.0, *rng.integers(0, 2, n - 2).astype(float)] for q, n in enumerate((2, 17, 3, 8, 2))}
    data = batch(groups, length=5, seed=4)
    rows = {uid: [i for i, other in enumerate(data["index"]) if other == uid] for uid in groups}
    return data, rows


@pytest.mark.parametrize("micro", [[slice(0, 32)], [slice(i, i + 8) for i in range(0, 32, 8)]], ids=["one", "four"])
@pytest.mark.parametrize("aggregation", [*EXACT_AGGREGATIONS, *MINI_BATCH_AGGREGATIONS])
@pytest.mark.parametrize("loss", LINEAR_LOSSES)
def test_the_gradient_is_the_mean_over_prompts(loss: str, aggregation: str, micro: list[slice]) -> None:
    data, rows = very_unequal()
    mask = data["response_mask"].double()
    weighted = ESTIMATORS["viprl_rloo"](**data)[0].double()
    plain = ESTIMATORS["viprl_rloo_rollout"](**data)[0].double()
    actual = loss_gradient(loss, aggregation, weighted, mask, micro)
    effective = "seq-mean-token-mean" if loss == "sapo" else aggregation
    count = len(mask)
    scale = {
        "token-sum": count,
        "seq-mean-token-sum": 1.0,
        "seq-mean-token-sum-norm": 1 / 7,
        "seq-mean-token-mean": 1.0,
        "token-mean": count / float(mask.sum()),
    }[effective]
    expected = torch.zeros_like(actual)
    for members in rows.values():
        for i in members:  # the mean over prompts of the means over their rollouts
            length = float(mask[i].sum()) if effective == "seq-mean-token-mean" else 1.0
            expected[i] = -plain[i] * mask[i] * scale / len(rows) / len(members) / length
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("equal_micro", [True, False])
def test_geo_mean_holds_for_micro_batches_of_equal_size_alone(equal_micro: bool) -> None:
    data, rows = very_unequal()
    mask = data["response_mask"].double()
    micro = [slice(i, i + 8) for i in range(0, 32, 8)] if equal_micro else [slice(0, 4), slice(4, 32)]
    weighted = ESTIMATORS["viprl_rloo"](**data)[0].double()
    actual = loss_gradient("geo_mean", "token-mean", weighted, mask, micro)
    plain = ESTIMATORS["viprl_rloo_rollout"](**data)[0].double()
    expected = torch.zeros_like(actual)
    for members in rows.values():
        for i in members:
            expected[i] = -plain[i] * mask[i] / float(mask[i].sum()) / len(members)
    live = expected.abs().amax(dim=1) > 0
    ratio = actual[live].abs().amax(dim=1) / expected[live].abs().amax(dim=1)
    assert (float(ratio.max() / ratio.min()) < 1 + 1e-5) == equal_micro


def test_without_the_factor_a_prompt_weighs_its_rollouts() -> None:
    data, rows = very_unequal()
    mask = data["response_mask"].double()
    weights = {}
    for name in ("viprl_rloo", "viprl_rloo_rollout"):
        advantages = ESTIMATORS[name](**data)[0].double()
        grad = loss_gradient("vanilla", "seq-mean-token-mean", advantages, mask, [slice(0, 32)])
        plain = ESTIMATORS["viprl_rloo_rollout"](**data)[0].double().abs().sum(1) / mask.sum(1)
        weights[name] = {
            uid: float(grad[members].abs().sum() / plain[members].sum() * len(members)) for uid, members in rows.items()
        }
    sizes = {uid: len(members) for uid, members in rows.items()}
    for uid, other in itertools.combinations(rows, 2):
        assert weights["viprl_rloo"][uid] == pytest.approx(weights["viprl_rloo"][other], rel=1e-5)
        assert weights["viprl_rloo_rollout"][uid] / sizes[uid] == pytest.approx(
            weights["viprl_rloo_rollout"][other] / sizes[other], rel=1e-5
        )
