"""Candidates: what a step fetches, keeps, submits and waits for, with verl's own fetching and no cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl.protocol")  # tests/integrations/verl alone would pass for a package "verl"
import torch
from verl.trainer.ppo.v1 import PPOTrainerSync
from verl_steps import answer

from viprl.history import parts, read_part
from viprl.integrations.verl.advantages import ESTIMATORS
from viprl.integrations.verl.setup import ID_COLUMN

pytestmark = pytest.mark.verl

Make = Callable[..., Any]
Step = dict[str, int]  # prompt id -> group size
FOUR = {"viprl.candidates": 4}


class Loader:
    """Batches of prompts in an order of its own each epoch, as a shuffling data loader gives them."""

    def __init__(self, prompts: int, batch: int = 8) -> None:
        self.prompts, self.batch, self.epoch = prompts, batch, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        order = np.random.default_rng(self.epoch).permutation(self.prompts)
        self.epoch += 1
        for start in range(0, self.prompts - self.batch + 1, self.batch):
            rows = order[start : start + self.batch]
            yield {
                "dummy_tensor": torch.zeros(self.batch, 1),
                "raw_prompt": np.array([[{"role": "user", "content": f"q{i}"}] for i in rows], dtype=object),
                "index": rows.astype(object),
                ID_COLUMN: np.array([f"t/{i}" for i in rows], dtype=object),
            }


def load(built: Any, prompts: int, batch: int = 8) -> Any:
    built.train_dataloader, built.train_dataloader_it = Loader(prompts, batch), None
    return built


def success(prompt_id: str, session: int, step: int) -> float:
    """Every second prompt is dead; the others succeed half of the time."""
    number = int(prompt_id[2:])
    return float(number % 2 and np.random.default_rng([number, session, step]).random() < 0.5)


def take_step(built: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Step, dict[str, float]]:
    """One whole step: what was submitted, and the metrics after it."""
    submitted: list[Any] = []
    monkeypatch.setattr(PPOTrainerSync, "_submit_batch_to_rollout", lambda self, batch: submitted.append(batch))
    built.prepare_step()
    (batch,) = submitted
    ids, uids = [str(i) for i in batch[ID_COLUMN]], [str(uid) for uid in batch["uid"]]
    sizes = [int(n) for n in batch["__rollout_n__"]]
    assert batch["global_steps"] == built.global_steps and len(batch["index"]) == len(ids) == batch.batch_size[0]
    assert [f"t/{i}" for i in batch["index"]] == ids  # rows stay whole
    waited_for: list[int] = []
    monkeypatch.setattr(PPOTrainerSync, "_step_once", lambda self, metrics, timing, size: waited_for.append(size))
    built._step_once({}, {}, 8)
    assert waited_for == [len(ids)]
    rows = [
        (uid, session, success(prompt_id, session, built.global_steps))
        for uid, prompt_id, size in zip(uids, ids, sizes, strict=True)
        for session in range(size)
    ]
    metrics = answer(built, rows, monkeypatch)
    built.global_steps += 1
    return dict(zip(ids, sizes, strict=True)), metrics


def test_the_budget_is_exact_and_dead_prompts_lose_it(make_trainer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    built = load(make_trainer(FOUR, prompts=48), 48)
    share, counts = [], set()
    for _ in range(40):
        step, metrics = take_step(built, monkeypatch)
        assert sum(step.values()) == 32 and min(step.values()) >= 3
        assert metrics["viprl/candidates"] <= 32 and metrics["viprl/kept"] == len(step)
        counts.add(len(step))
        share.append(sum(n for i, n in step.items() if int(i[2:]) % 2 == 0) / 32)
    assert np.mean(share[:2]) > 0.35 and np.mean(share[-20:]) < 0.25
    assert counts != {8}  # how many prompts share the budget is the selection's to say
    built.history.flush()
    rows = [row for path, _, _ in parts(built.history.folder) for row in read_part(path)]
    assert {row["kept_for"] for row in rows} <= {"value", "exploration", "rest", "uniform"}
    assert {row["candidates"] for row in rows} <= set(range(17, 33))


def test_a_prompt_is_offered_once_a_step_where_epochs_meet(make_trainer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    built = load(make_trainer(FOUR, prompts=40), 40)
    offered: list[tuple[str, ...]] = []
    choose = built.allocator.select
    monkeypatch.setattr(
        built.allocator, "select", lambda ids, budget: offered.append(tuple(ids)) or choose(ids, budget)
    )
    for _ in range(5):
        take_step(built, monkeypatch)
    assert all(len(set(ids)) == len(ids) for ids in offered)
    assert len(offered[0]) == 32 and any(len(ids) < 32 for ids in offered)  # five fetches an epoch, four a step
    assert set().union(*offered) == {f"t/{i}" for i in range(40)}
    assert built.train_dataloader.epoch == 4  # 20 fetches


def test_fetches_may_be_smaller_than_a_batch(make_trainer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    built = load(make_trainer({**FOUR, "data.gen_batch_size": 2}, prompts=48), 48, batch=2)
    step, metrics = take_step(built, monkeypatch)
    assert sum(step.values()) == 32 and metrics["viprl/candidates"] == 32


@pytest.mark.parametrize(("prompts", "offered"), [(23, 16), (12, None)])
def test_a_small_data_set_offers_what_it_has(
    make_trainer: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    prompts: int,
    offered: int | None,
) -> None:
    with caplog.at_level(logging.WARNING, logger="viprl"):
        built = load(make_trainer(FOUR, prompts=prompts), prompts)
    assert f"4 * 8 prompts a step are more than an epoch of the {prompts} rows holds" in caplog.text
    assert ("all of them get rollouts" in caplog.text) == (offered is None)
    for _ in range(3):
        step, metrics = take_step(built, monkeypatch)
        assert sum(step.values()) == 32
        if offered is None:
            assert len(step) == 8 and "viprl/candidates" not in metrics
        else:
            assert 8 <= metrics["viprl/candidates"] <= offered  # less what came twice where epochs meet


def test_without_candidates_nothing_is_selected(make_trainer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    built = load(make_trainer(prompts=48), 48)
    monkeypatch.setattr(built.allocator, "select", None)
    step, metrics = take_step(built, monkeypatch)
    assert len(step) == 8 and "viprl/candidates" not in metrics and built.train_dataloader.epoch == 1


def test_a_resumed_run_keeps_the_same_prompts(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", lambda self: None)
    monkeypatch.setattr(PPOTrainerSync, "_load_checkpoint", lambda self: None)
    # the stand-in log-probabilities hang on verl's random uids, so what is learnt from them would differ
    plain = {**FOUR, "viprl.variance": "formula"}
    built = load(make_trainer(plain, prompts=48), 48)
    for _ in range(6):
        take_step(built, monkeypatch)
    built._save_checkpoint()
    expected = [take_step(built, monkeypatch)[0] for _ in range(4)]

    def resume(saved: int) -> list[Step]:
        resumed = load(make_trainer(plain, prompts=48), 48)
        resumed.global_steps = saved
        for _ in range(6):  # what verl's own checkpoint of the data loader brings about
            resumed._next_train_batch()
        resumed.selected = None
        resumed._load_checkpoint()
        return [take_step(resumed, monkeypatch)[0] for _ in range(4)]

    assert resume(7) == expected
    assert len({tuple(step) for step in expected}) == 4


def test_an_unbiased_selections_weights_reach_the_advantages(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = load(make_trainer({**FOUR, "viprl.selection": "unbiased"}, prompts=48), 48)
    for _ in range(8):
        take_step(built, monkeypatch)
    monkeypatch.setattr(PPOTrainerSync, "_submit_batch_to_rollout", lambda self, batch: None)
    built.prepare_step()
    weights = built.ledger.weights()
    plan = built.ledger._plans[0]
    assert list(weights.values()) == plan.prompt_weights.tolist() and len(set(weights.values())) > 1
    uids = np.repeat(list(weights), plan.group_sizes)
    scores = torch.tensor(np.random.default_rng(0).integers(0, 2, (len(uids), 1)), dtype=torch.float64)
    data = {"token_level_rewards": scores, "response_mask": torch.ones(len(uids), 1), "index": uids}
    plain, _ = ESTIMATORS["viprl_rloo"](**data)
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(
        PPOTrainerSync, "_compute_advantage", lambda self, *a: seen.append(ESTIMATORS["viprl_rloo"](**data)[0])
    )
    answer(built, [(uid, i, 1.0) for i, uid in enumerate(uids)], monkeypatch)
    torch.testing.assert_close(seen[0], plain * torch.tensor(plan.prompt_weights[plan.rows()]).unsqueeze(-1))
    np.testing.assert_allclose(seen[0].numpy().ravel(), plan.advantages(scores.numpy().ravel()))
    assert torch.equal(ESTIMATORS["viprl_rloo"](**data)[0], plain)  # the weights end with their batch
