"""The trainer's overrides around verl's own methods, without a cluster: the parents are replaced by recorders."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl.protocol")  # tests/integrations/verl alone would pass for a package "verl"
import torch
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import PPOTrainerSync, get_trainer_cls
from verl.utils import tensordict_utils as tu

from viprl.errors import CheckpointError, ConfigurationError
from viprl.integrations.history import HistoryWriter, parts, read_part
from viprl.integrations.verl import TRAINER_MODE, trainer
from viprl.integrations.verl.checks import check_config
from viprl.integrations.verl.ledger import MissingRewardsError, PlanLedger
from viprl.integrations.verl.setup import ID_COLUMN, build_allocator, read_prompts
from viprl.integrations.verl.trainer import STATE_FILE, AdaptiveTrainerSync

pytestmark = pytest.mark.verl

Make = Callable[..., dict[str, Any]]


def prompt_rows(count: int) -> list[dict[str, Any]]:
    return [
        {"data_source": "t", "prompt": [{"role": "user", "content": f"q{i}"}], "extra_info": {"index": i}}
        for i in range(count)
    ]


@pytest.fixture
def make_trainer(make_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A trainer over 12 prompts whose parent's methods do nothing."""
    for name, result in (("_submit_batch_to_rollout", 0), ("_compute_advantage", None), ("on_step_end", None)):
        monkeypatch.setattr(PPOTrainerSync, name, lambda self, *a, _r=result, **k: a[0] if a else _r)

    def make(changes: dict[str, Any] | None = None) -> Any:
        config = make_config(
            {
                "viprl.guard": False,
                "trainer.default_local_dir": str(tmp_path / "checkpoints"),
                "trainer.resume_mode": "auto",
                **(changes or {}),
            }
        )
        built = AdaptiveTrainerSync.__new__(AdaptiveTrainerSync)
        built.config = OmegaConf.create(config)
        built.settings = check_config(config)
        built.ledger = PlanLedger()
        built.allocator = build_allocator(read_prompts(prompt_rows(12), prompt_column="prompt"), built.settings)
        built.history = HistoryWriter(tmp_path / "history", format="jsonl")
        built.timing_raw, built.global_steps, built.total_training_steps = {}, 1, 10
        built._rewards = np.zeros(0)
        return built

    return make


def submit(built: Any, prompts: list[int], uids: list[str]) -> list[int]:
    """Group sizes that a submitted batch carries."""
    batch = tu.get_tensordict(
        {
            "dummy": torch.zeros(len(prompts), 1),
            "uid": np.array(uids, dtype=object),
            ID_COLUMN: np.array([f"t/{i}" for i in prompts], dtype=object),
        }
    )
    built._submit_batch_to_rollout(batch)
    return [int(n) for n in batch["__rollout_n__"]]


def answer(
    built: Any, rows: list[tuple[str, int, float]], monkeypatch: pytest.MonkeyPatch, padding: int = 0
) -> dict[str, float]:
    """Metrics after a batch of (uid, session, reward) rows, in the given order, with padding rows among them."""
    rows = [*rows, *((f"pad{'a' * 32}", i, 99.0) for i in range(padding))]
    rewards = {f"{uid}_{session}_0": reward for uid, session, reward in rows}
    batch = KVBatchMeta(
        keys=list(rewards), tags=[{"response_len": 2} for _ in rows], partition_id="train", extra_info={}
    )
    batch.reorder(built.ledger.order(batch.keys))

    def get(keys: list[str], **unused: Any) -> dict[str, torch.Tensor]:
        nested = [torch.tensor([0.0, rewards[key]]) for key in keys]
        return {"rm_scores": torch.nested.as_nested_tensor(nested, layout=torch.jagged)}

    monkeypatch.setattr(trainer.tq, "kv_batch_get", get)
    metrics: dict[str, float] = {}
    built._compute_advantage(batch, metrics)
    return metrics


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
    settings = check_config(make_config())
    prompts = prompts_of_dataset(holder, prompt_column="prompt", settings=settings)
    assert holder.dataframe[ID_COLUMN] == prompts.row_ids == [f"t/{i}" for i in range(5)]
    with pytest.raises(ConfigurationError, match="dataframe"):
        prompts_of_dataset(object(), prompt_column="prompt", settings=settings)
