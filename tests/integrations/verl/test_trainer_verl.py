"""The trainer's overrides around verl's own methods, without a cluster: the parents are replaced by recorders."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl.protocol")  # tests/integrations/verl alone would pass for a package "verl"
from omegaconf import OmegaConf
from verl.trainer.ppo.v1 import PPOTrainerSync, get_trainer_cls
from verl_steps import answer, prompt_rows, submit

from viprl.errors import CheckpointError, ConfigurationError
from viprl.history import parts, read_part
from viprl.integrations.verl import TRAINER_MODE
from viprl.integrations.verl.checks import check_config
from viprl.integrations.verl.ledger import MissingRewardsError
from viprl.integrations.verl.setup import ID_COLUMN
from viprl.integrations.verl.trainer import STATE_FILE, AdaptiveTrainerSync

pytestmark = pytest.mark.verl

Make = Callable[..., dict[str, Any]]


def test_the_replay_buffer_is_the_synchronous_one() -> None:
    built = AdaptiveTrainerSync.__new__(AdaptiveTrainerSync)
    built.trainer_mode = TRAINER_MODE  # what verl's constructor does
    assert built.trainer_mode == "sync"
    assert get_trainer_cls(TRAINER_MODE) is AdaptiveTrainerSync


@pytest.mark.parametrize("mode", ["viprl_colocate_async", "viprl_separate_async", "viprl_one_step_off_policy"])
def test_asynchronous_trainers_are_refused_with_the_reason(mode: str) -> None:
    with pytest.raises(ConfigurationError, match=f"must be viprl_sync.*{mode}.*older policies"):
        get_trainer_cls(mode)(OmegaConf.create({}))


def test_every_prompt_gets_its_own_number(make_trainer: Callable[..., Any]) -> None:
    built = make_trainer()
    sizes = submit(built, list(range(8)), [f"u{i}" for i in range(8)])
    assert sum(sizes) == 32 and min(sizes) >= 3


@pytest.mark.parametrize("seed", range(5))
def test_rewards_never_cross_prompts(
    make_trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    # Prompt i always has the reward i mod 2: whatever crosses shows in the predictor and in the history.
    rng = np.random.default_rng(seed)
    built = make_trainer({"viprl.max_missing": 1.0, "viprl.min_group_size": 2, "viprl.reward_values": [0, 1]})
    for step in range(4):
        prompts = rng.integers(0, 12, 8).tolist()  # duplicates too
        refill = rng.integers(0, 12, 3).tolist()  # a later, smaller submission of the same step
        names = [f"s{step}u{i}" for i in range(11)]
        sizes = submit(built, prompts, names[:8]) + submit(built, refill, names[8:])
        rows = [
            (uid, session, float(prompt % 2))
            for uid, prompt, size in zip(names, prompts + refill, sizes, strict=True)
            for session in range(size)
        ]
        kept = [rows[i] for i in rng.permutation(len(rows)) if rng.random() > 0.15]
        metrics = answer(built, kept, monkeypatch, padding=int(rng.integers(0, 4)))
        assert metrics["viprl/missing_rewards"] == len(rows) - len(kept)
        built.global_steps += 1
    built.history.flush()
    seen = [row for path, _, _ in parts(built.history.folder) for row in read_part(path)]
    assert seen
    for row in seen:
        assert row["reward_mean"] == int(row["prompt_id"][2:]) % 2


def test_padding_rows_reach_neither_the_predictor_nor_the_count(
    make_trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, padded = make_trainer(), make_trainer()
    for built, padding in ((plain, 0), (padded, 5)):
        sizes = submit(built, list(range(8)), [f"u{i}" for i in range(8)])
        rows = [(f"u{i}", session, float(session % 2)) for i, size in enumerate(sizes) for session in range(size)]
        metrics = answer(built, rows, monkeypatch, padding=padding)
        assert metrics["viprl/padding_rows"] == padding
        assert metrics["viprl/missing_rewards"] == 0
    next_plans = [built.allocator.allocate([f"t/{i}" for i in range(8)], 32) for built in (plain, padded)]
    np.testing.assert_array_equal(next_plans[0].group_sizes, next_plans[1].group_sizes)


def test_too_many_missing_rewards_end_the_step(
    make_trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    built = make_trainer({"viprl.max_missing": 0.25})
    submit(built, list(range(8)), [f"u{i}" for i in range(8)])
    with pytest.raises(MissingRewardsError, match=r"viprl\.max_missing must hold"):
        answer(built, [("u0", 0, 1.0)], monkeypatch)


def test_all_rollouts_failing_is_said_in_our_words(
    make_trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, metrics: Any, timing: Any) -> None:
        raise RuntimeError("Sync replay buffer selected terminal groups with no materializable trajectories.")

    monkeypatch.setattr(PPOTrainerSync, "step", fail)
    with pytest.raises(MissingRewardsError, match="at least one rollout of step 1 must come back"):
        make_trainer().step({}, {})
    monkeypatch.setattr(PPOTrainerSync, "step", lambda *a: (_ for _ in ()).throw(RuntimeError("something else")))
    with pytest.raises(RuntimeError, match="something else"):
        make_trainer().step({}, {})


def test_state_is_written_before_verls_tracker_and_restored(
    make_trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[bool] = []
    state = tmp_path / "checkpoints" / "global_step_1" / STATE_FILE
    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", lambda self: seen.append(state.is_file()))
    monkeypatch.setattr(PPOTrainerSync, "_load_checkpoint", lambda self: None)
    built = make_trainer()
    sizes = submit(built, list(range(8)), [f"u{i}" for i in range(8)])
    rows = [(f"u{i}", s, float(i % 2 or s % 2)) for i, size in enumerate(sizes) for s in range(size)]
    answer(built, rows, monkeypatch)
    built._save_checkpoint()
    assert seen == [True]
    ids = [f"t/{i}" for i in range(4, 12)]
    expected = built.allocator.allocate(ids, 32)

    resumed = make_trainer()
    resumed._load_checkpoint()
    actual = resumed.allocator.allocate(ids, 32)
    np.testing.assert_array_equal(actual.group_sizes, expected.group_sizes)
    np.testing.assert_array_equal(actual.prediction.mean, expected.prediction.mean)
    assert len(set(actual.group_sizes.tolist())) > 1


def test_resuming_cuts_the_history_back(make_trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", lambda self: None)
    monkeypatch.setattr(PPOTrainerSync, "_load_checkpoint", lambda self: None)
    built = make_trainer()
    for step in (1, 2, 3):
        built.global_steps = step
        sizes = submit(built, list(range(8)), [f"{step}u{i}" for i in range(8)])
        rows = [(f"{step}u{i}", s, float(s % 2)) for i, size in enumerate(sizes) for s in range(size)]
        answer(built, rows, monkeypatch)
        if step == 1:
            built._save_checkpoint()
    built.history.flush()
    resumed = make_trainer()
    resumed.global_steps = 1
    resumed._load_checkpoint()
    assert {row["step"] for path, _, _ in parts(resumed.history.folder) for row in read_part(path)} == {0}


def test_a_checkpoint_of_stock_verl_needs_consent(
    make_trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PPOTrainerSync, "_load_checkpoint", lambda self: None)
    with pytest.raises(CheckpointError, match=r"\+viprl\.fresh_state=true"):
        make_trainer()._load_checkpoint()
    make_trainer({"viprl.fresh_state": True})._load_checkpoint()


def test_score_metrics_survive_a_missing_reward(
    make_trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(self: Any, batch: Any, metrics: dict[str, float], *args: Any, **kwargs: Any) -> None:
        metrics["critic/score/mean"] = float("nan")

    monkeypatch.setattr(PPOTrainerSync, "_compute_metrics", spoiled)
    built = make_trainer()
    built._rewards = np.array([1.0, np.nan, 0.0])
    metrics: dict[str, float] = {}
    built._compute_metrics(None, metrics, {}, global_steps=1, epoch=0)
    assert metrics["critic/score/mean"] == 0.5


def test_the_data_set_gets_a_column_of_ids(make_config: Make) -> None:
    datasets = pytest.importorskip("datasets")
    from viprl.integrations.verl.setup import prompts_of_dataset

    holder = types.SimpleNamespace(dataframe=datasets.Dataset.from_list(prompt_rows(5)))
    settings = check_config(make_config()).settings
    prompts = prompts_of_dataset(holder, prompt_column="prompt", settings=settings)
    assert holder.dataframe[ID_COLUMN] == list(prompts.ids) == [f"t/{i}" for i in range(5)]
    with pytest.raises(ConfigurationError, match="dataframe"):
        prompts_of_dataset(object(), prompt_column="prompt", settings=settings)
