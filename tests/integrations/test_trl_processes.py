"""Two processes (gloo), by torchrun and by fork: budget, advantages, resume, errors."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl")
import tiny
import torch
import trl_worker
from accelerate.state import AcceleratorState
from test_trl_gradient import difference, per_prompt_mean, settings
from trl_runs import expected_advantages, gold_of

from viprl.errors import ViprlError
from viprl.history import parts, read_part

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def torchrun(folder, options):
    (folder / "options.json").write_text(json.dumps(options))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1] / "src")]),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={free_port()}"]
    command += [str(HERE / "trl_worker.py"), str(folder), str(folder / "options.json")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]


def _rank(rank, port, folder, options, resume):
    """One of two forked processes: what torchrun would set, and no state of the parent's accelerator."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )  # fmt: skip
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        trl_worker.run(folder, options, resume)
    except ViprlError as error:
        (folder / f"error-{rank}.txt").write_text(f"{type(error).__name__}: {error}")


def fork_two(folder, options, resume=False):
    """The same run as forked processes, which start with everything imported."""
    port = free_port()
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_rank, args=(rank, port, folder, options, resume)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(240)
        assert process.exitcode == 0


def lines(folder, rank):
    return [json.loads(line) for line in (folder / f"steps-{rank}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Groups straddle the ranks: 12 rows each, window of two steps; saved inside the last window."""
    folder = tmp_path_factory.mktemp("two")
    options = {
        "kind": "rloo", "per_device_train_batch_size": 6, "steps_per_generation": 2, "max_steps": 8,
        "save_strategy": "steps", "save_steps": 5,
    }  # fmt: skip
    torchrun(folder, options)
    return folder, options


def test_advantages_by_hand(two):
    folder, _ = two
    ranks = [lines(folder, 0), lines(folder, 1)]
    assert len(ranks[0]) == len(ranks[1]) == 4
    gold = gold_of(tiny.dataset())
    for a, b in zip(*ranks, strict=True):
        shared = ("ids", "sizes", "rewards", "advantages")
        assert [a[k] for k in shared] == [b[k] for k in shared]
        rows = [tuple(row) for row in a["rows"] + b["rows"]]  # rank order is row order
        assert len(a["rows"]) == len(b["rows"]) == 12 and sum(a["sizes"]) == 24
        assert [x for _, _, x in rows] == pytest.approx(expected_advantages(rows, gold, "rloo"), abs=1e-6)
    assert len({tuple(line["sizes"]) for line in ranks[0]}) > 1
    rows = [row for path, _, _ in parts(folder / "history") for row in read_part(path)]
    assert len(rows) == 24  # written once, not once per process


def test_ranks_end_with_the_same_parameters(two):
    folder, _ = two
    assert torch.equal(torch.load(folder / "final-0.pt"), torch.load(folder / "final-1.pt"))


@pytest.mark.parametrize("loss", ["rloo", "dapo"])
def test_gradient_is_the_mean_over_prompts(loss, tmp_path):
    """Two processes with two micro-batches each; groups of 14 and 2 straddle them."""
    kind, options = settings(loss)
    options = {
        "kind": kind, "per_device_train_batch_size": 6, "gradient_accumulation_steps": 2, "max_steps": 1,
        "max_grad_norm": 0.0, "temperature": 0.8, **options,
    }  # fmt: skip
    fork_two(tmp_path, options)
    ranks = [lines(tmp_path, rank)[0] for rank in (0, 1)]
    rows = [tuple(row) for line in ranks for row in line["rows"]]
    estimator = "rloo" if loss == "rloo" else "dr_grpo"
    plain = expected_advantages(rows, gold_of(tiny.dataset()), estimator, equal=False)
    outputs = [torch.load(tmp_path / f"rollouts-{rank}.pt") for rank in (0, 1)]
    expected = per_prompt_mean(tiny.model().state_dict(), outputs, plain, rows, loss)
    for rank in (0, 1):
        assert difference(torch.load(tmp_path / f"gradient-{rank}.pt"), expected) < 1e-5


def test_candidates_on_two_processes(tmp_path):
    """Both ranks train the same choice, each its own rows of it; resumed inside a window."""
    options = {
        "kind": "rloo", "candidates": 2, "prompt_id_column": "key", "per_device_train_batch_size": 6,
        "steps_per_generation": 2, "max_steps": 8, "save_strategy": "steps", "save_steps": 5,
    }  # fmt: skip
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    whole.mkdir()
    fork_two(whole, options)
    gold = gold_of(tiny.dataset())
    chosen = set()
    for a, b in zip(lines(whole, 0), lines(whole, 1), strict=True):
        assert [a[k] for k in ("ids", "sizes", "advantages")] == [b[k] for k in ("ids", "sizes", "advantages")]
        rows = [tuple(row) for row in a["rows"] + b["rows"]]
        assert len(a["rows"]) == len(b["rows"]) == 12 and sum(a["sizes"]) == 24
        assert [x for _, _, x in rows] == pytest.approx(expected_advantages(rows, gold, "rloo"), abs=1e-6)
        chosen.add(tuple(a["ids"]))
    assert len(chosen) == 4
    history = [row for path, _, _ in parts(whole / "history") for row in read_part(path)]
    assert {row["candidates"] for row in history} == {12}
    shutil.copytree(whole / "checkpoint-5", resumed / "checkpoint-5")
    fork_two(resumed, {**options, "save_strategy": "no"}, resume=True)
    for rank in (0, 1):
        assert torch.equal(torch.load(resumed / f"final-{rank}.pt"), torch.load(whole / f"final-{rank}.pt"))
        assert lines(resumed, rank) == lines(whole, rank)[3:]


def test_resume_of_two_processes(two, tmp_path):
    folder, options = two
    shutil.copytree(folder / "checkpoint-5", tmp_path / "checkpoint-5")
    assert {"viprl_window_0.pt", "viprl_window_1.pt"} <= {p.name for p in (tmp_path / "checkpoint-5").iterdir()}
    fork_two(tmp_path, {**options, "save_strategy": "no"}, resume=True)
    for rank in (0, 1):
        assert torch.equal(torch.load(tmp_path / f"final-{rank}.pt"), torch.load(folder / f"final-{rank}.pt"))
        assert lines(tmp_path, rank) == lines(folder, rank)[3:]


def test_an_error_on_the_main_process_ends_all(two, tmp_path):
    """Rewards that the predictor refuses: every rank stops with the reason instead of waiting for ever."""
    _, options = two
    fork_two(tmp_path, {**options, "reward_values": [5.0, 6.0]})
    for rank in (0, 1):
        assert "for a predictor of success probabilities" in (tmp_path / f"error-{rank}.txt").read_text()
