"""What is logged means what it says."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("trl")
import pandas as pd
import tiny
from trl_runs import Fixed, Recorder, make

from viprl.history import HISTORY_COLUMNS, parts, read_part
from viprl.integrations.trl import logs

SIZES = (14, 2, 2, 2, 2, 2)


def test_mean_and_std_by_prompt():
    rows = np.array([0, 0, 0, 0, 1])
    mean, std = logs.mean_and_std(np.array([1.0, 1, 1, 1, 0]), rows, 2)
    assert mean == 0.5 and std == pytest.approx(np.sqrt(0.25 * 5 / 4))
    values = np.array([0.0, 1, 1, 0, 3, 2])
    equal = np.array([0, 0, 1, 1, 2, 2])
    mean, std = logs.mean_and_std(values, equal, 3)
    assert mean == pytest.approx(values.mean()) and std == pytest.approx(values.std(ddof=1))
    assert np.isnan(logs.mean_and_std(np.array([np.nan]), np.array([0]), 1)).all()
    assert logs.mean_and_std(np.array([np.nan, 2.0]), np.array([0, 1]), 2)[0] == 2.0


def test_share_without_spread():
    rewards = np.array([1.0, 1, 0, 1, 5, np.nan, np.nan, 0.35, 0.35])
    assert logs.share_without_spread(rewards, np.array([0, 0, 1, 1, 2, 2, 3, 4, 4]), 5) == pytest.approx(2 / 3)
    assert np.isnan(logs.share_without_spread(np.array([1.0]), np.array([0]), 1))


@pytest.mark.parametrize("kind", ["dr_grpo", "rloo"])
def test_rewards_are_averaged_by_prompt(kind, tmp_path):
    def long(completions, **_):
        return [None if c.startswith("a") else float(len(c) > 3) for c in completions]

    trainer = make(
        kind, tmp_path, policy=Fixed(*SIZES), max_steps=2, reward_funcs=[tiny.reward, long], reward_weights=[1.0, 0.0]
    )
    record = Recorder(trainer)
    trainer.train()
    gold = dict(zip(trainer.train_dataset["prompt"], trainer.train_dataset["gold"], strict=True))
    for log, rows, step in zip(trainer.state.log_history, record.batches, record.steps, strict=False):
        right = np.array([float(tiny.is_right(c, gold[p])) for p, c, _ in rows])
        lengths = np.array([np.nan if c.startswith("a") else float(len(c) > 3) for _, c, _ in rows])
        by_prompt = [right[step.rows == q] for q in range(6)]
        assert log["reward"] == log["rewards/reward/mean"] == pytest.approx(np.mean([g.mean() for g in by_prompt]))
        assert log["frac_reward_zero_std"] == pytest.approx(np.mean([g.std() == 0 for g in by_prompt]))
        weights = np.concatenate([np.full(n, 1 / 6 / n) for n in step.group_sizes])
        spread = np.sqrt((weights * (right - log["reward"]) ** 2).sum() * 24 / 23)
        assert log["reward_std"] == log["rewards/reward/std"] == pytest.approx(spread)
        expected = np.mean(
            [np.nanmean(lengths[step.rows == q]) for q in range(6) if not np.isnan(lengths[step.rows == q]).all()]
        )
        assert log["rewards/long/mean"] == pytest.approx(expected)
        assert log["viprl/group_size_min"] == 2 and log["viprl/group_size_max"] == 14
        assert {"viprl/variance_ratio", "viprl/log_loss", "viprl/guard", "viprl/overhead_seconds"} <= set(log)
        assert {"viprl/dead_groups_predicted", "viprl/dead_groups_seen", "viprl/missing_rewards"} <= set(log)
    assert trainer.state.log_history[0]["reward"] != pytest.approx(np.mean(record.steps[0].rewards))


def test_completions_table_carries_the_prompt_id(tmp_path):
    """Also after an evaluation, whose rows enter the same table."""
    trainer = make(
        "dr_grpo", tmp_path, policy=Fixed(*SIZES), max_steps=4, log_completions=True, prompt_id_column="key",
        eval_dataset=tiny.dataset(4, seed=3), eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=4,
    )  # fmt: skip
    record = Recorder(trainer)
    trainer.train()
    truth = dict(zip(trainer.train_dataset["key"], trainer.train_dataset["prompt"], strict=True))
    for number in (1, 4):
        table = pd.read_parquet(tmp_path / "completions" / f"completions_{number:05d}.parquet")
        assert len(table) == 24
        rows = record.batches[number - 1]
        if number == 1:
            assert [truth[k] for k in table["prompt_id"]] == list(table["prompt"]) == [p for p, _, _ in rows]
            np.testing.assert_allclose(table["advantage"], [a for _, _, a in rows], atol=1e-6)
    evaluated = pd.read_parquet(tmp_path / "completions" / "completions_00002.parquet")
    assert len(evaluated) == 24 and evaluated["prompt_id"].notna().all()


def test_history_of_a_run(tmp_path):
    trainer = make("rloo", tmp_path, policy=Fixed(*SIZES), max_steps=3)
    record = Recorder(trainer)
    trainer.train()
    rows = [row for path, _, _ in parts(tmp_path / "history") for row in read_part(path)]
    assert [tuple(row) for row in rows] == [HISTORY_COLUMNS] * 18
    for number, step in enumerate(record.steps):
        written = [row for row in rows if row["step"] == number]
        assert tuple(row["prompt_id"] for row in written) == step.prompt_ids
        assert [row["group_size"] for row in written] == [row["n_rollouts"] for row in written] == list(SIZES)
        assert [row["successes"] for row in written] == [step.rewards[step.rows == q].sum() for q in range(6)]
    assert [row["visit"] for row in rows if row["step"] < 2] == [0] * 12


def test_no_history_when_not_wanted(tmp_path):
    trainer = make("rloo", tmp_path, max_steps=1, history_format="none")
    trainer.train()
    assert trainer.history is None and not (tmp_path / "history").exists()


def test_jsonl_history(tmp_path):
    make("rloo", tmp_path, max_steps=1, history_format="jsonl").train()
    assert [p.suffix for p, _, _ in parts(tmp_path / "history")] == [".jsonl"]
