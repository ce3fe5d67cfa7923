"""A resumed run equals the uninterrupted one: prompts, plans, completions, parameters, history."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("trl")
import tiny
import torch
import trl_worker
from trl_runs import Recorder, make, parameters

from viprl import VIP
from viprl.errors import CheckpointError
from viprl.history import parts, read_part
from viprl.integrations.trl import resume

# 16 prompts, 6 a batch: 2 generation batches an epoch. The window serves 4 passes of 1 step each: 8 steps an epoch.
WINDOW = {"per_device_train_batch_size": 12, "steps_per_generation": 2, "num_iterations": 2}
RUN = {**WINDOW, "max_steps": 18, "save_strategy": "steps", "save_steps": 1}


def history(folder):
    return [row for path, _, _ in parts(Path(folder) / "history") for row in read_part(path)]


def assert_close(ours, theirs):
    """Equal but for the last digits: a norm's rounding depends on the processor and on where its tensors lie."""
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert_close(ours[name], theirs[name])
    elif np.asarray(ours).dtype.kind == "f":
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    else:
        np.testing.assert_array_equal(ours, theirs)


def told(steps):
    return [(s.prompt_ids, s.group_sizes.tolist(), s.rewards.tolist(), s.advantages.tolist()) for s in steps]


@pytest.fixture(scope="module", params=["dr_grpo", pytest.param("rloo", marks=pytest.mark.slow)])
def uninterrupted(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    trainer = make(request.param, folder, **RUN)
    record = Recorder(trainer)
    trainer.train()
    return request.param, folder, record, parameters(trainer), trainer


@pytest.mark.parametrize("at", [3, 8, 11, 12, 17], ids=lambda k: f"step-{k}")
def test_resume_equals_the_uninterrupted_run(uninterrupted, at, tmp_path):
    """3: inside a window; 8: between epochs; 11: later epoch, inside a window; 12: later epoch; 17: third epoch."""
    kind, folder, record, final, first = uninterrupted
    shutil.copytree(folder / f"checkpoint-{at}", tmp_path / f"checkpoint-{at}")
    shutil.copytree(folder / "history", tmp_path / "history")  # of the whole run: must be cut back
    trainer = make(kind, tmp_path, **{**RUN, "save_strategy": "no"}, model=tiny.model(seed=7))
    again = Recorder(trainer)
    trainer.train(resume_from_checkpoint=True)
    generated = -(-at // 4)
    assert told(again.steps) == told(record.steps[generated:])
    assert [rows for rows in again.batches] == record.batches[generated:]
    assert again.loss_rows == record.loss_rows[at:]
    assert torch.equal(parameters(trainer), final)
    assert history(tmp_path) == history(folder)
    assert trainer.allocator.step == first.allocator.step == 5
    ours, theirs = trainer.allocator.state_dict(), first.allocator.state_dict()
    assert repr(ours["predictor"]) == repr(theirs["predictor"])


def test_the_run_needed_it(uninterrupted):
    """The tests above can fail: epochs differ in their prompts, and plans change with what was seen."""
    _, _, record, _, _ = uninterrupted
    assert {s.prompt_ids for s in record.steps[:2]}.isdisjoint({s.prompt_ids for s in record.steps[2:4]})
    assert len({tuple(s.group_sizes.tolist()) for s in record.steps}) > 2


@pytest.mark.parametrize("at", [1, 3])
def test_learned_variance_resumes_inside_a_pass(at, tmp_path):
    """Norms are collected over the first two steps of a window; 1: half of them are in, 3: all."""
    options = {**RUN, "max_steps": 6, "variance": "learned", "policy": VIP()}
    first = make("rloo", tmp_path / "a", **options)
    first.train()
    shutil.copytree(tmp_path / "a" / f"checkpoint-{at}", tmp_path / "b" / f"checkpoint-{at}")
    second = make("rloo", tmp_path / "b", **{**options, "save_strategy": "no"})
    second.train(resume_from_checkpoint=True)
    assert torch.equal(parameters(second), parameters(first))
    ours, theirs = second.allocator.model.state_dict(), first.allocator.model.state_dict()
    assert_close(ours, theirs)
    assert first.allocator.model.metrics()["gradient_norm_dispersion"] > 0


@pytest.mark.slow
def test_resume_in_the_middle_of_accumulation_steps(tmp_path):
    """Accumulation that does not divide the window: the window is resumed between its passes."""
    options = {
        "per_device_train_batch_size": 6, "gradient_accumulation_steps": 3, "steps_per_generation": 4,
        "max_steps": 6, "save_strategy": "steps", "save_steps": 1,
    }  # fmt: skip
    trainer = make("dr_grpo", tmp_path / "a", **options)
    record = Recorder(trainer)
    trainer.train()
    for at in (1, 2, 4):
        target = tmp_path / f"from-{at}"
        shutil.copytree(tmp_path / "a" / f"checkpoint-{at}", target / f"checkpoint-{at}")
        other = make("dr_grpo", target, **{**options, "save_strategy": "no"})
        again = Recorder(other)
        other.train(resume_from_checkpoint=True)
        assert torch.equal(parameters(other), parameters(trainer)), at
        assert again.loss_rows == record.loss_rows[-len(again.loss_rows) :]


class TestCheckpointFolder:
    @pytest.fixture
    def saved(self, tmp_path):
        trainer = make("dr_grpo", tmp_path, **{**RUN, "max_steps": 3, "save_steps": 1})
        trainer.train()
        return tmp_path

    def test_ours_is_written_before_the_trainer_state(self, tmp_path):
        order = []
        trainer = make("dr_grpo", tmp_path, **{**RUN, "max_steps": 1})
        callback = trainer.state
        save = type(callback).save_to_json

        def watched(state, path):
            order.append(sorted(p.name for p in Path(path).parent.iterdir()))
            return save(state, path)

        type(callback).save_to_json = watched
        try:
            trainer.train()
        finally:
            type(callback).save_to_json = save
        assert {"viprl_allocator.npz", "viprl_trainer.json", "viprl_window_0.pt", "rng_state.pth"} <= set(order[0])
        assert "trainer_state.json" not in order[0]

    def test_half_a_checkpoint_is_passed_over(self, saved):
        (saved / "checkpoint-3" / "trainer_state.json").unlink()
        (saved / "checkpoint-2" / "trainer_state.json").write_text('{"global_step":')
        assert resume.last_whole_checkpoint(saved).endswith("checkpoint-1")
        trainer = make("dr_grpo", saved, **{**RUN, "max_steps": 3, "save_strategy": "no"})
        trainer.train(resume_from_checkpoint=True)
        assert trainer.state.global_step == 3

    def test_no_checkpoint(self, tmp_path):
        trainer = make("dr_grpo", tmp_path, **RUN)
        with pytest.raises(ValueError, match="No valid checkpoint"):
            trainer.train(resume_from_checkpoint=True)

    def test_damaged_window(self, saved):
        (saved / "checkpoint-3" / "viprl_window_0.pt").write_bytes(b"junk")
        trainer = make("dr_grpo", saved, **RUN)
        with pytest.raises(CheckpointError, match="must hold its rollouts"):
            trainer.train(resume_from_checkpoint=True)

    def test_another_window_is_refused_inside_one(self, saved):
        trainer = make("dr_grpo", saved, **{**RUN, "num_iterations": 1})
        with pytest.raises(CheckpointError, match="same window"):
            trainer.train(resume_from_checkpoint=True)

    def test_another_format_is_refused(self, saved):
        path = saved / "checkpoint-3" / "viprl_trainer.json"
        path.write_text(path.read_text().replace('"format": 1', '"format": 9'))
        trainer = make("dr_grpo", saved, **RUN)
        with pytest.raises(CheckpointError, match="format 9"):
            trainer.train(resume_from_checkpoint=True)

    def test_another_policy_is_refused(self, saved):
        trainer = make("dr_grpo", saved, policy=VIP(), **RUN)
        with pytest.raises(CheckpointError, match="policy"):
            trainer.train(resume_from_checkpoint=True)

    def test_checkpoint_of_plain_trl(self, saved):
        for path in (saved / "checkpoint-3").glob("viprl_*"):
            path.unlink()
        trainer = make("dr_grpo", saved, **{**RUN, "max_steps": 4, "save_strategy": "no"})
        with pytest.warns(UserWarning, match="starts cold"):
            trainer.train(resume_from_checkpoint=True)
        assert trainer.allocator.step == 1

    def test_an_earlier_runs_history_is_set_aside(self, saved):
        rows = history(saved)
        trainer = make("dr_grpo", saved, **{**RUN, "max_steps": 1, "save_strategy": "no"})
        trainer.train()
        assert len(history(saved)) == 6
        old = [row for path, _, _ in parts(saved / "history-1") for row in read_part(path)]
        assert old == rows


def steps_of(folder):
    path = folder / "steps-0.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def start(folder, options, resume):
    """The run as a forked process: it starts with everything imported."""
    process = multiprocessing.get_context("fork").Process(target=trl_worker.run, args=(folder, options, resume))
    process.start()
    return process


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "more"), [("dr_grpo", {}), ("rloo", {}), ("rloo", {"candidates": 2, "prompt_id_column": "key"})]
)
def test_killed_at_random_points(kind, more, tmp_path):
    """SIGKILL in the second epoch or later, at random moments (also inside a window and while saving), then resume."""
    options = {"kind": kind, **RUN, "max_steps": 22, "save_steps": 3, "logging_steps": 1000, **more}
    plain, killed = tmp_path / "plain", tmp_path / "killed"
    trl_worker.run(plain, options)
    expected = steps_of(plain)
    assert len(expected) == 6
    rng = random.Random(kind)
    deaths = 0
    for wanted in (3, 5):  # generation batches begun before the kill: both are past the first epoch
        process = start(killed, {**options, "sleep": 0.3}, resume=deaths > 0)
        while len(steps_of(killed)) < wanted and process.is_alive():
            time.sleep(0.02)
        time.sleep(rng.random() * 0.4)
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            deaths += 1
        process.join()
    assert deaths == 2 and not (killed / "final-0.pt").exists()
    last = start(killed, options, resume=True)
    last.join(300)
    assert last.exitcode == 0
    assert torch.equal(torch.load(killed / "final-0.pt"), torch.load(plain / "final-0.pt"))
    assert history(killed) == history(plain)
    by_step = {line["global_step"]: line for line in expected}
    assert all(line == by_step[line["global_step"]] for line in steps_of(killed))
