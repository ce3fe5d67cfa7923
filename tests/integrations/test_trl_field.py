"""Cases from public bug reports of other trainers, through the real trainers."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("trl")
import tiny
import torch
from datasets import Dataset
from trl_runs import KINDS, Fixed, Recorder, make, parameters

from viprl import DiscountedBeta
from viprl.errors import ConfigurationError, InvalidInputError
from viprl.integrations.trl import AdaptiveRLOOConfig

SIZES = (3, 4, 2, 9, 3, 3)
BOTH = ("grpo", "rloo")  # with and without a standard deviation, one on each trainer


def train(kind, tmp_path, reward, **options):
    options.setdefault("policy", Fixed(*SIZES))
    trainer = make(kind, tmp_path, reward_funcs=reward, **{"max_steps": 1, **options})
    record = Recorder(trainer)
    before = parameters(trainer)
    trainer.train()
    moved = float((parameters(trainer) - before).abs().max())
    return trainer, record, moved


def constant(value):
    return lambda completions, **_: [value] * len(completions)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [1.0, 0.0])
def test_uneven_groups_with_one_constant_reward(kind, value, tmp_path):
    """Cases 1 and 5: a dead batch gives advantage 0 everywhere, a zero update, and the run goes on."""
    trainer, record, moved = train(kind, tmp_path, constant(value), max_steps=2, weight_decay=0.0)
    assert all(a == 0.0 for rows in record.batches for _, _, a in rows)
    assert moved == 0.0 and trainer.state.global_step == 2
    assert trainer.state.log_history[0]["frac_reward_zero_std"] == 1.0


@pytest.mark.parametrize("kind", BOTH)
def test_constant_rewards_that_float32_cannot_hold(kind, tmp_path):
    """Case 3: rounding residue of equal rewards must not become a signal, also in equal groups."""

    class Real(DiscountedBeta):
        reward_kind = "real"

        def observe_rewards(self, ids, means, variances, rollouts):
            pass

    for sizes in (SIZES, (4,) * 6):
        _, record, moved = train(
            kind, tmp_path, constant(0.35), policy=Fixed(*sizes), predictor=Real(), weight_decay=0.0
        )
        assert all(a == 0.0 for _, _, a in record.batches[0]) and moved == 0.0


@pytest.mark.parametrize("kind", BOTH)
def test_group_of_one_gets_no_advantage(kind, tmp_path):
    """Case 2."""
    sizes = (1, 1, 8, 10, 2, 2)
    _, record, _ = train(kind, tmp_path, tiny.reward, policy=Fixed(*sizes), min_group_size=1)
    advantages = np.array([a for _, _, a in record.batches[0]])
    assert advantages[:2].tolist() == [0.0, 0.0] and np.abs(advantages[2:]).max() > 0.1


@pytest.mark.parametrize("kind", BOTH)
def test_one_success_in_four_stays_bounded(kind, tmp_path):
    """Case 3: [1, 0, 0, 0]."""

    def one_in_four(prompts, **_):
        return [float(i % 4 == 0) for i in range(len(prompts))]

    for sizes in ((4,) * 6, (4, 8, 4, 4, 2, 2)):
        _, record, _ = train(kind, tmp_path, one_in_four, policy=Fixed(*sizes))
        advantages = np.abs([a for _, _, a in record.batches[0]])
        assert 0.1 < advantages.max() < 6


def missing_for(key, rows=None):
    """Rewards by text, None for the prompt with that key (all its rollouts, or those at the given places)."""

    def reward(completions, gold, **kwargs):
        seen = 0
        out = []
        for completion, right, name in zip(completions, gold, kwargs["key"], strict=True):
            value = float(tiny.is_right(completion, right))
            if name == key:
                value = None if rows is None or seen in rows else value
                seen += 1
            out.append(value)
        return out

    return reward


@pytest.mark.parametrize("kind", KINDS)
def test_missing_rewards(kind, tmp_path):
    """Case 4: None is neither NaN nor 0, and stays outside the group's baseline, the weights and the predictor."""
    data = tiny.dataset(6)
    trainer, record, _ = train(
        kind, tmp_path, missing_for("p0", rows=(0, 2)), train_dataset=data, shuffle_dataset=False,
        policy=Fixed(9, 3, 3, 3, 3, 3),
    )  # fmt: skip
    step = record.steps[0]
    advantages = np.array([a for _, _, a in record.batches[0]])
    assert np.isnan(step.rewards).nonzero()[0].tolist() == [0, 2]
    assert np.isfinite(advantages).all() and advantages[0] == advantages[2] == 0.0
    present = step.rewards[:9][~np.isnan(step.rewards[:9])]
    for i in (i for i in range(9) if not np.isnan(step.rewards[i])):
        a = step.rewards[i] - present.mean()
        a *= {"rloo": 7 / 6, "rloo_in_grpo": 7 / 6}.get(kind, 1)
        a = a / (present.std(ddof=1) + 1e-4) if kind == "grpo" else a
        assert advantages[i] == pytest.approx(a * (22 / 6) / 7, abs=1e-6)
    assert trainer.allocator.history_rows()[0]["n_rollouts"] == 7
    assert trainer.allocator.metrics()["viprl/missing_rewards"] == 2
    assert trainer.state.log_history[0]["reward"] == pytest.approx(
        np.mean([np.nanmean(step.rewards[step.rows == q]) for q in range(6)])
    )


@pytest.mark.parametrize("kind", BOTH)
def test_a_prompt_without_any_reward_is_skipped(kind, tmp_path):
    data = tiny.dataset(6)
    trainer, record, _ = train(kind, tmp_path, missing_for("p0"), train_dataset=data, shuffle_dataset=False)
    advantages = np.array([a for _, _, a in record.batches[0]])
    assert (advantages[: SIZES[0]] == 0).all() and np.isfinite(advantages).all()
    ids = {row["prompt_id"] for row in trainer.allocator.history_rows()}
    assert len(ids) == 5 and record.steps[0].prompt_ids[0] not in ids
    assert trainer.allocator.metrics()["viprl/skipped_prompts"] == 1
    # the others weigh as if the batch had five prompts
    weights = advantages[SIZES[0] :][np.abs(advantages[SIZES[0] :]) > 0]
    assert len(weights)


@pytest.mark.parametrize("kind", ["dr_grpo", "rloo"])
def test_no_reward_at_all(kind, tmp_path):
    trainer, record, moved = train(kind, tmp_path, constant(None), max_steps=2, weight_decay=0.0)
    assert all(a == 0.0 for rows in record.batches for _, _, a in rows) and moved == 0.0
    assert trainer.allocator.step == 2 and trainer.allocator.history_rows() == []
    assert trainer.state.log_history[0]["reward"] is None


def test_padding_reaches_neither_loss_nor_predictor(tmp_path):
    """Case 6: completions of different lengths are padded; padded tokens are masked and no row is added."""
    lengths = []
    trainer = make("dr_grpo", tmp_path, max_steps=1, policy=Fixed(*SIZES))
    generate = trainer._generate_and_score_completions

    def watch(inputs):
        output = generate(inputs)
        ended = (output["completion_ids"] == 1).cumsum(1) - (output["completion_ids"] == 1).long() > 0
        assert ended.any() and (output["completion_mask"][ended] == 0).all()
        assert (output["completion_mask"][~ended] == 1).all()
        lengths.append(output["completion_mask"].sum(1))
        return output

    trainer._generate_and_score_completions = watch
    trainer.train()
    rows = trainer.allocator.history_rows()
    assert [r["n_rollouts"] for r in rows] == list(SIZES)
    tokens = torch.split(lengths[0], list(SIZES))
    assert [r["tokens"] for r in rows] == [int(t.sum()) for t in tokens]


@pytest.mark.parametrize("kind", ["dr_grpo", "rloo"])
def test_the_same_prompt_twice_in_a_batch(kind, tmp_path):
    """Case 7: two rows with the same text are two groups with one history."""
    base = tiny.dataset(6)
    prompts = list(base["prompt"])
    prompts[4] = prompts[3] + " "  # the same text, written differently
    data = Dataset.from_dict({"prompt": prompts, "gold": base["gold"], "key": base["key"]})

    def reward(key, completions, **_):
        return [float(k in ("p3", "p0") or len(c) > 2) for k, c in zip(key, completions, strict=True)]

    trainer, record, _ = train(kind, tmp_path, reward, train_dataset=data, shuffle_dataset=False, max_steps=1)
    step = record.steps[0]
    assert step.prompt_ids[3] == step.prompt_ids[4] and len(set(step.prompt_ids)) == 5
    advantages = np.array([a for _, _, a in record.batches[0]])
    # p3 always succeeds: its own group is dead although p4, with the same id, may have failures
    assert (advantages[step.rows == 3] == 0).all()
    rows = trainer.allocator.history_rows()
    assert [r["visit"] for r in rows] == [0, 0, 0, 0, 1, 0]


@pytest.mark.parametrize("kind", ["dr_grpo", "rloo"])
def test_an_outage_of_rewards_is_forgotten(kind, tmp_path):
    """Case 9: steps whose rewards all collapse to 0 must not convince the predictor for ever."""
    calls = []

    def reward(completions, **_):
        calls.append(len(completions))
        down = 6 < len(calls) <= 9
        return [0.0 if down else float(i % 8 != 0) for i in range(len(completions))]

    trainer, record, _ = train(
        kind, tmp_path, reward, max_steps=12, train_dataset=tiny.dataset(6), policy=Fixed(4, 4, 4, 4, 4, 4),
        learning_rate=0.0,
    )  # fmt: skip
    ids = list(record.steps[0].prompt_ids)
    logs = [log for log in trainer.state.log_history if "viprl/quarantined" in log]
    assert sum(log["viprl/quarantined"] for log in logs) >= 2
    assert trainer.allocator.predictor.predict(ids).mean.min() > 0.5


@pytest.mark.parametrize("kind", BOTH)
def test_rows_answers_and_rewards_stay_together(kind, tmp_path):
    """Case 11: answers that identify their prompt."""
    seen = []

    def reward(prompts, completions, gold, key, **_):
        seen.extend(zip(prompts, gold, key, strict=True))
        return [float(int(k[1:]) % 2) for k in key]

    trainer, record, _ = train(
        kind, tmp_path, reward, max_steps=2, per_device_train_batch_size=6, gradient_accumulation_steps=4
    )
    data = trainer.train_dataset
    truth = {p: (g, k) for p, g, k in zip(data["prompt"], data["gold"], data["key"], strict=True)}
    assert len(seen) == 48 and all(truth[p] == (g, k) for p, g, k in seen)
    for rows, step in zip(record.batches, record.steps, strict=True):
        assert [float(int(truth[p][1][1:]) % 2) for p, _, _ in rows] == step.rewards.tolist()


class TestBudget:
    """Case 12: what does not divide is refused at the start, with the rule and the numbers."""

    def test_budget_is_the_generation_batch(self, tmp_path):
        with pytest.raises(ConfigurationError, match=r"budget=32 and 24"):
            make("dr_grpo", tmp_path, budget=32)
        assert make("dr_grpo", tmp_path, budget=24).args.budget == 24

    def test_not_divisible_by_the_group(self, tmp_path):
        with pytest.raises(ValueError, match=r"\(22\) must be divisible by num_generations \(4\)"):
            make("rloo", tmp_path, per_device_train_batch_size=22)

    def test_not_divisible_by_the_micro_batch(self, tmp_path):
        with pytest.raises(ValueError, match=r"\(32\) must be divisible by the global batch size \(24\)"):
            make("rloo", tmp_path, generation_batch_size=32)

    def test_not_divisible_by_the_processes(self, tmp_path, monkeypatch):
        monkeypatch.setattr(AdaptiveRLOOConfig, "world_size", 5)
        with pytest.raises(ValueError, match=r"\(24\) must be divisible by the global batch size \(30\)"):
            make("rloo", tmp_path, generation_batch_size=24, per_device_train_batch_size=6)

    def test_bounds(self, tmp_path):
        with pytest.raises(ConfigurationError, match="min_group_size=5, budget / prompts = 24 / 6"):
            make("rloo", tmp_path, min_group_size=5)

    def test_more_prompts_than_data(self, tmp_path):
        with pytest.raises(ConfigurationError, match="5 prompts for 24 / 4 = 6"):
            make("rloo", tmp_path, train_dataset=tiny.dataset(5))

    def test_a_policy_that_breaks_the_budget(self, tmp_path):
        trainer = make("rloo", tmp_path, policy=Fixed(4, 4, 4, 4, 4, 5))
        with pytest.raises(InvalidInputError, match="sum 24"):
            trainer.train()


def test_rewards_that_are_not_binary_are_refused_in_words(tmp_path):
    trainer = make("dr_grpo", tmp_path, reward_funcs=lambda completions, **_: [0.1 * len(c) for c in completions])
    with pytest.raises(InvalidInputError, match="reward_values"):
        trainer.train()


def test_declared_reward_values(tmp_path):
    """0.1 is not a float32 number; declared rewards are matched as the trainer sees them."""
    trainer, _, _ = train(
        "dr_grpo", tmp_path, lambda completions, **_: [0.1 if len(c) > 2 else -0.3 for c in completions],
        reward_values=[-0.3, 0.1],
    )  # fmt: skip
    rows = trainer.allocator.history_rows()
    assert all(0 <= r["successes"] <= r["n_rollouts"] for r in rows)
    assert all(r["successes"] == pytest.approx(round(r["successes"]), abs=1e-6) for r in rows)


def test_warning_for_terms_that_count_rollouts(tmp_path):
    with pytest.warns(UserWarning, match="the entropy bonus still count") as found:
        make("dr_grpo", tmp_path, entropy_coef=0.01)
    assert sum("still count" in str(w.message) for w in found) == 1
