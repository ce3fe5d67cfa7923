"""Advantages of the real trainers against a computation by hand from the decoded text."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("trl")
import tiny
from trl_runs import KINDS, Recorder, Uneven, expected_advantages, gold_of, make, parameters

ESTIMATOR = {"dr_grpo": "dr_grpo", "grpo": "grpo", "rloo_in_grpo": "rloo", "rloo": "rloo"}


def check_rows(rows, expected):
    got = np.array([a for _, _, a in rows])
    np.testing.assert_allclose(got, expected, atol=1e-6, rtol=0)
    return np.abs(expected).max()


@pytest.mark.parametrize("kind", KINDS)
def test_by_hand(kind, tmp_path):
    trainer = make(kind, tmp_path, max_steps=3)
    record = Recorder(trainer)
    trainer.train()
    gold = gold_of(trainer.train_dataset)
    assert len(record.batches) == 3
    largest = []
    for rows, step in zip(record.batches, record.steps, strict=True):
        largest.append(check_rows(rows, expected_advantages(rows, gold, ESTIMATOR[kind])))
        assert len(rows) == step.group_sizes.sum() == 24 and step.group_sizes.max() >= 3 * step.group_sizes.min()
        # the rows lie group after group, in the loader's order, each as often as planned
        assert [p for p, _, _ in rows] == [trainer.train_dataset["prompt"][int(i[1:])] for i in named(trainer, step)]
    assert max(largest) > 0.1  # batches of zeros would prove nothing


def named(trainer, step):
    prompts = dict(zip(trainer.train_dataset["prompt"], trainer.train_dataset["key"], strict=True))
    by_hash = {trainer._id_rule.id_of({"prompt": p}): key for p, key in prompts.items()}
    return [by_hash[step.prompt_ids[q]] for q in step.rows]


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_rollout_weighting_by_hand(kind, tmp_path):
    trainer = make(kind, tmp_path, max_steps=1, prompt_weighting="rollout")
    record = Recorder(trainer)
    trainer.train()
    rows = record.batches[0]
    expected = expected_advantages(rows, gold_of(trainer.train_dataset), ESTIMATOR[kind], equal=False)
    assert check_rows(rows, expected) > 0.1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {"per_device_train_batch_size": 6, "gradient_accumulation_steps": 4, "max_steps": 2},
        {
            "per_device_train_batch_size": 6,
            "gradient_accumulation_steps": 1,
            "steps_per_generation": 4,
            "num_iterations": 2,
            "max_steps": 16,
        },
    ],
    ids=["accumulation-4", "steps-4-iterations-2"],
)
def test_every_micro_batch_by_hand(kind, options, tmp_path):
    """What reaches the loss, micro-batch by micro-batch, after TRL's shuffling and buffering."""
    trainer = make(kind, tmp_path, **options)
    record = Recorder(trainer)
    trainer.train()
    assert len(record.batches) == 2
    gold = gold_of(trainer.train_dataset)
    passes = 4 * options.get("num_iterations", 1)
    assert len(record.loss_rows) == 2 * passes
    largest = 0.0
    for generation, rows in enumerate(record.batches):
        expected = expected_advantages(rows, gold, ESTIMATOR[kind])
        largest = max(largest, check_rows(rows, expected))
        by_text = {(p, c): a for (p, c, _), a in zip(rows, expected, strict=True)}
        seen = record.loss_rows[generation * passes : (generation + 1) * passes]
        for batch in seen:
            check = [by_text[p, c] for p, c, _ in batch]
            np.testing.assert_allclose([a for _, _, a in batch], check, atol=1e-6, rtol=0)
        texts = sorted((p, c) for batch in seen for p, c, _ in batch)
        assert texts == sorted((p, c) for p, c, _ in rows for _ in range(passes // 4))
    assert largest > 0.1


def test_rloo_penalises_inside_the_reward(tmp_path):
    """With beta the advantages are those of reward - beta * KL; the predictor sees the reward without it."""
    folder = tmp_path / "model"
    tiny.model().save_pretrained(folder)
    trainer = make("rloo", tmp_path, beta=0.7, max_steps=3, model=str(folder), learning_rate=0.05)
    record = Recorder(trainer)
    kls = []
    collect = trainer._penalty

    def penalty(output):
        kls.append(collect(output) / 0.7)
        return 0.7 * kls[-1]

    trainer._penalty = penalty
    trainer.train()
    assert np.abs(kls[-1]).max() > 0.01
    for rows, step, kl in zip(record.batches, record.steps, kls, strict=True):
        gold = gold_of(trainer.train_dataset)
        plain = np.array([float(tiny.is_right(c, gold[p])) for p, c, _ in rows])
        np.testing.assert_array_equal(step.rewards, plain)
        scored = plain - 0.7 * kl
        expected = np.zeros(24)
        for q, n in enumerate(step.group_sizes):
            inside = step.rows == q
            others = (scored[inside].sum() - scored[inside]) / (n - 1)
            expected[inside] = (scored[inside] - others) * 24 / 6 / n
        np.testing.assert_allclose([a for _, _, a in rows], expected, atol=1e-5, rtol=0)
    # the penalty is the one that TRL logs, there per token
    logged = [log["kl"] for log in trainer.state.log_history if "kl" in log]
    rows = trainer.allocator.history_rows()
    assert logged[-1] == pytest.approx(kls[-1].sum() / sum(row["tokens"] for row in rows), rel=1e-5)


@pytest.mark.parametrize("kind", ["dr_grpo", "rloo"])
def test_several_reward_functions_with_weights(kind, tmp_path):
    def first(completions, gold, **_):
        return [float(tiny.is_right(c, g)) for c, g in zip(completions, gold, strict=True)]

    def second(completions, **_):
        return [None if len(c) > 3 else float(len(c)) for c in completions]

    from viprl import DiscountedBeta

    class Watching(DiscountedBeta):
        reward_kind = "real"

        def observe_rewards(self, ids, means, variances, rollouts):
            self.means = np.array(means)

    trainer = make(
        kind,
        tmp_path,
        reward_funcs=[first, second],
        reward_weights=[1.0, 0.5],
        predictor=Watching(),
        policy=Uneven(),
        max_steps=1,
    )
    record = Recorder(trainer)
    trainer.train()
    gold, step = gold_of(trainer.train_dataset), record.steps[0]
    rewards = []
    for p, c, _ in record.batches[0]:
        rewards.append(float(tiny.is_right(c, gold[p])) + (0.0 if len(c) > 3 else 0.5 * len(c)))
    np.testing.assert_allclose(step.rewards, rewards, atol=1e-6)
    expected = np.zeros(24)
    for q, n in enumerate(step.group_sizes):
        inside = step.rows == q
        r = np.array(rewards)[inside]
        expected[inside] = (r - r.mean()) * (n / (n - 1) if kind == "rloo" else 1) * 4 / n
    np.testing.assert_allclose([a for _, _, a in record.batches[0]], expected, atol=1e-6)
    np.testing.assert_allclose(
        trainer.allocator.predictor.means, [np.array(rewards)[step.rows == q].mean() for q in range(6)]
    )


def test_parameters_move(tmp_path):
    trainer = make("dr_grpo", tmp_path, max_steps=1)
    before = parameters(trainer)
    trainer.train()
    assert (parameters(trainer) - before).abs().max() > 1e-3
