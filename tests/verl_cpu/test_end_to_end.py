"""The real V1 trainer (Ray, TransferQueue, agent loop, reward loop, FSDP2 over gloo), launched by stock main_ppo."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hand import (
    advantage_error,
    by_step,
    groups_of,
    log_prob_error,
    mean_squared_norm,
    question_of,
    sizes_of,
    std_advantage_error,
    weights_of,
)
from verl_cpu.launch import Run, overrides
from verl_cpu.rewards import is_right
from verl_cpu.world import read_lines

pytestmark = [pytest.mark.verl, pytest.mark.slow]

SECONDS = float(os.environ.get("VERL_CPU_TIMEOUT", "900"))
ADAPTIVE = ["trainer.v1.trainer_mode=viprl_sync", "+viprl.guard=false"]
Launch = Callable[..., Run]


@pytest.fixture
def launch(world: Path, tmp_path: Path) -> Launch:
    """Starts a run in ``tmp_path/<name>``; ``data`` names one of the world's training files."""

    def start(
        name: str,
        *arguments: str,
        data: str = "train",
        ranks: int = 1,
        steps: int = 3,
        environment: dict[str, str] | None = None,
    ) -> Run:
        given = overrides(
            tmp_path / name,
            world / "tiny",
            world / f"{data}.parquet",
            world / "val.parquet",
            ranks=ranks,
            steps=steps,
        )
        return Run(tmp_path / name, [*given, *arguments], environment or {}).start()

    return start


def history(run: Run) -> list[dict[str, Any]]:
    from viprl.history import parts, read_part

    folder = run.folder / "checkpoints" / "viprl_history"
    return [row for path, _, _ in parts(folder) for row in read_part(path)]


def finish(run: Run) -> None:
    status = run.wait(SECONDS)
    assert status == 0, run.tail()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("estimator", ["dr_grpo", "rloo"])
def test_unequal_groups(launch: Launch, estimator: str, ranks: int) -> None:
    run = launch(
        "run",
        *ADAPTIVE,
        f"algorithm.adv_estimator=viprl_{estimator}",
        "+viprl.policy=zigzag",
        "+viprl.min_group_size=1",
        f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={8 // ranks}",
        "trainer.save_freq=3",
        "trainer.test_freq=3",
        ranks=ranks,
    )
    finish(run)
    steps = by_step(read_lines(run.record))
    planned = {step: {} for step in steps}
    for row in history(run):
        planned[row["step"] + 1][row["prompt_id"]] = row["group_size"]
    assert sorted(steps) == [1, 2, 3]
    for step, rows in steps.items():
        assert len(rows) == 32 and not any(row["padding"] for row in rows)
        sizes = sizes_of(rows)
        assert sorted(n for group in sizes.values() for n in group) == [1, 1, 1, 3, 5, 6, 7, 8]
        ids = {f"tiny/{question.split()[0][1:]}": n for question, (n,) in sizes.items()}
        assert ids == planned[step]
        assert advantage_error(rows, estimator) < 1e-6
        assert log_prob_error(rows) < 1e-5
    metrics = [line["data"] for line in read_lines(run.metrics)]
    for step, values in enumerate(metrics, start=1):
        scores = [row["score"] for row in steps[step]]
        assert values["critic/score/mean"] == pytest.approx(sum(scores) / len(scores))
        assert values["viprl/padding_rows"] == values["viprl/missing_rewards"] == 0
        assert (values["viprl/group_size_min"], values["viprl/group_size_max"]) == (1, 8)
        assert math.isfinite(values["actor/grad_norm"]) and values["actor/grad_norm"] > 0
    assert any(name.startswith("val-core/tiny/") for name in metrics[-1])
    checkpoints = run.folder / "checkpoints"
    assert (checkpoints / "latest_checkpointed_iteration.txt").read_text() == "3"
    assert (checkpoints / "global_step_3" / "viprl.npz").is_file()


def test_std_normalised_grpo_on_accuracy_and_format(launch: Launch) -> None:
    """verl's most used estimator: the predictor learns the accuracy, the advantages are of the whole reward."""
    run = launch(
        "run",
        "trainer.v1.trainer_mode=viprl_sync",
        "algorithm.adv_estimator=viprl_grpo",
        "+viprl.success_reward=acc",
        "reward.custom_reward_function.name=accuracy_and_format",
        data="few",
        steps=8,
    )
    finish(run)
    steps = by_step(read_lines(run.record))
    rows = history(run)
    assert sorted(steps) == list(range(1, 9)) and sorted({row["step"] for row in rows}) == list(range(8))
    for step, found in steps.items():
        own = {row["prompt_id"]: row for row in rows if row["step"] == step - 1}
        assert std_advantage_error(found) < 1e-5
        for members in groups_of(found).values():
            question = question_of(members[0])
            told = own[f"tiny/{question.split()[0][1:]}"]
            assert told["group_size"] == len(members)
            assert told["successes"] == sum(is_right(row["response"], question) for row in members)
            assert told["reward_mean"] == pytest.approx(sum(row["score"] for row in members) / len(members), abs=1e-6)
    used = [line["data"]["viprl/policy_used"] for line in read_lines(run.metrics)]
    assert sum(used) > len(used) / 2, used


def test_resume_after_sigkill_continues_with_the_same_plans(launch: Launch) -> None:
    arguments = [
        *(*ADAPTIVE, "algorithm.adv_estimator=viprl_rloo", "+viprl.min_group_size=2", "trainer.save_freq=3"),
        "+viprl.variance=learned",
    ]
    first = launch("run", *arguments, data="few", steps=6)
    before = kill(first, step=5)
    second = launch("run", *arguments, data="few", steps=6)
    finish(second)
    after = by_step(read_lines(second.record))
    assert sorted(after) == [4, 5, 6]
    assert "restored the allocator at step 3" in second.log.read_text(errors="replace")
    for step in (4, 5):
        same_rows(before[step], after[step])
    assert any(len({n for group in sizes_of(rows).values() for n in group}) > 1 for rows in after.values())
    rows = history(second)
    assert sorted({row["step"] for row in rows}) == list(range(6))
    assert len(rows) == len({(row["step"], row["prompt_id"]) for row in rows}) == 6 * 8
    check_learned_variance(second, [before[step] for step in (1, 2, 3)] + [after[step] for step in (4, 5, 6)])


def test_candidates_are_selected_and_resume_after_sigkill(launch: Launch) -> None:
    arguments = [
        *(*ADAPTIVE, "algorithm.adv_estimator=viprl_rloo", "+viprl.candidates=4", "trainer.save_freq=4"),
        "data.dataloader_num_workers=1",  # which fetches ahead
    ]
    first = launch("run", *arguments, data="mixed", steps=12)
    before = kill(first, step=6)
    second = launch("run", *arguments, data="mixed", steps=12)
    finish(second)
    after = by_step(read_lines(second.record))
    assert sorted(after) == list(range(5, 13))
    same_rows(before[5], after[5])
    same_rows(before[6], after[6])

    steps = {**{step: before[step] for step in range(1, 5)}, **after}
    told = history(second)
    for step, rows in steps.items():
        assert len(rows) == 32 and not any(row["padding"] for row in rows)  # the budget, however many prompts share it
        assert advantage_error(rows, "rloo") < 1e-6
        own = {row["prompt_id"]: row for row in told if row["step"] == step - 1}
        assert {f"tiny/{name.split()[0][1:]}": n for name, (n,) in sizes_of(rows).items()} == {
            prompt_id: row["group_size"] for prompt_id, row in own.items()
        }
        assert {row["candidates"] for row in own.values()} <= set(range(16, 33))
        assert {row["kept_for"] for row in own.values()} <= {"value", "exploration", "rest", "uniform"}
    dead = {step: sum(question_of(row).endswith(" 0") for row in rows) / 32 for step, rows in steps.items()}
    assert sum(dead[step] for step in range(8, 13)) / 5 < 0.3, dead  # of the data set it is .6
    for line in read_lines(second.metrics):
        assert line["data"]["viprl/kept"] == len(groups_of(after[line["step"]]))
        assert line["data"]["timing_s/viprl_select"] < 1.0


def test_an_unbiased_selection_on_two_ranks(launch: Launch) -> None:
    run = launch(
        "run",
        *(*ADAPTIVE, "algorithm.adv_estimator=viprl_rloo", "+viprl.candidates=4", "+viprl.selection=unbiased"),
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        data="mixed",
        ranks=2,
        steps=6,
    )
    finish(run)
    told = history(run)
    seen = []
    for step, rows in by_step(read_lines(run.record)).items():
        assert len(rows) == 32 and not any(row["padding"] for row in rows)
        own = {row["prompt_id"]: row["group_size"] for row in told if row["step"] == step - 1}
        assert {f"tiny/{name.split()[0][1:]}": n for name, (n,) in sizes_of(rows).items()} == own
        seen += weights_of(rows, "rloo").values()
    assert len(seen) > 12 and min(seen) > 0 and max(seen) > 1.1 * min(seen)


def kill(run: Run, step: int) -> dict[int, list[dict[str, Any]]]:
    """Kill a run once it has rows of a step; its rows so far, and room for those of the next."""
    # the launcher and the TaskRunner, nothing else: the rest must notice by itself
    task_runner = wait_for_rows(run, step)[0]["pid"]
    os.kill(task_runner, signal.SIGKILL)
    assert run.process is not None
    run.process.kill()
    run.process.wait()
    wait_until_gone(task_runner)
    run.stop()
    rows = by_step(read_lines(run.record))
    run.record.rename(run.folder / "before.jsonl")
    run.metrics.unlink()
    return rows


def same_rows(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
    """The same prompts with as many rollouts each, and the same answers, trained alike."""
    assert [(question_of(row), row["response"]) for row in old] == [(question_of(row), row["response"]) for row in new]
    assert sizes_of(old) == sizes_of(new)
    for a, b in zip(old, new, strict=True):
        assert a["advantages"] == pytest.approx(b["advantages"], abs=1e-6)
        assert a["old_log_probs"] == pytest.approx(b["old_log_probs"], abs=1e-5)


def check_learned_variance(run: Run, steps: list[list[dict[str, Any]]]) -> None:
    """The model has learnt from the norms of all steps, those before the checkpoint too, and says so in the metrics."""
    from viprl.checkpoint import read_state

    state = read_state(run.folder / "checkpoints" / f"global_step_{len(steps)}" / "viprl.npz")["model"]
    assert state["steps"] == len(steps)
    assert math.exp(state["curves"]["level"]) == pytest.approx(mean_squared_norm(steps), rel=1e-4)
    last = read_lines(run.metrics)[-1]["data"]
    assert 0 < last["viprl/learned_variance_ratio"] < 2 and last["viprl/learned_variance_ratio"] != 1
    assert last["viprl/gradient_norm_dispersion"] != 1 and "viprl/learned_variance_blend" in last


def test_missing_rewards_are_counted_and_failing_rollouts_end_the_run(launch: Launch) -> None:
    run = launch(
        "run",
        *ADAPTIVE,
        "algorithm.adv_estimator=viprl_rloo",
        "+viprl.policy=zigzag",
        "+viprl.min_group_size=2",
        "+viprl.max_missing=0.9",
        data="faulty",
        steps=5,
        environment={"VERL_CPU_FAIL": "3"},
    )
    status = run.wait(SECONDS)
    ended = time.time()
    text = run.log.read_text(errors="replace")
    assert status != 0
    assert "MissingRewardsError" in text and "at least one rollout of step 3 must come back" in text
    assert ended - run.metrics.stat().st_mtime < 60 * SECONDS / 900  # a minute on an idle machine

    steps = by_step(read_lines(run.record))
    metrics = {line["step"]: line["data"] for line in read_lines(run.metrics)}
    assert sorted(steps) == sorted(metrics) == [1, 2]
    seen: dict[str, int] = {}
    for step, rows in steps.items():
        assert len(rows) == 32
        padding = [row for row in rows if row["padding"]]
        assert len(padding) == 1 == metrics[step]["viprl/padding_rows"]  # one session failed to generate
        assert advantage_error(rows, "rloo") < 1e-6  # NaN rows and padding rows have advantage 0
        missing = [row for row in rows if math.isnan(row["score"])]
        for row in missing:
            seen[question_of(row)] = seen.get(question_of(row), 0) + 1
            assert not any(row["advantages"])
        assert metrics[step]["viprl/missing_rewards"] == len(missing) + 1
        assert math.isfinite(metrics[step]["actor/grad_norm"]) and metrics[step]["actor/grad_norm"] > 0
        present = [row["score"] for row in rows if not row["padding"] and not math.isnan(row["score"])]
        assert metrics[step]["critic/score/mean"] == pytest.approx(sum(present) / len(present))
    assert set(seen) == {"q5 5", "q6 6", "q7 7"}  # NaN, None, an exception
    assert text.count("Further ones of this worker are logged at DEBUG") == 1


def test_equal_groups_train_like_stock_verl(launch: Launch) -> None:
    stock = launch("stock", "algorithm.adv_estimator=rloo")
    finish(stock)
    ours = launch(
        "ours", "trainer.v1.trainer_mode=viprl_sync", "algorithm.adv_estimator=viprl_rloo", "+viprl.policy=uniform"
    )
    finish(ours)
    expected, actual = by_step(read_lines(stock.record)), by_step(read_lines(ours.record))
    assert sorted(expected) == sorted(actual) == [1, 2, 3]
    for step in expected:
        rows = [
            {named(row, groups): row for row in rows}
            for rows in (expected[step], actual[step])
            for groups in (groups_of(rows),)
        ]
        assert rows[0].keys() == rows[1].keys() and len(rows[0]) == 32
        for name, row in rows[0].items():
            other = rows[1][name]
            assert row["response"] == other["response"]
            assert row["advantages"] == pytest.approx(other["advantages"], abs=1e-6)
            # the actor's probabilities depend on all updates before
            assert row["old_log_probs"] == pytest.approx(other["old_log_probs"], rel=1e-6, abs=1e-6)
    norms = [[line["data"]["actor/grad_norm"] for line in read_lines(run.metrics)] for run in (stock, ours)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def named(row: dict[str, Any], groups: dict[str, Any]) -> tuple[str, int]:
    """(question, session): what a row is called in both runs."""
    assert row["key"].rsplit("_", 2)[0] in groups
    return question_of(row), int(row["key"].rsplit("_", 2)[1])


def wait_for_rows(run: Run, step: int) -> list[dict[str, Any]]:
    """The record, once it has rows of a step."""
    run.wait_for(run.record, SECONDS)
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        text = run.record.read_text(encoding="utf-8")
        if f'"step": {step}, ' in text and text.endswith("\n"):
            return read_lines(run.record)
        assert run.process is not None and run.process.poll() is None, run.tail()
        time.sleep(0.02)
    raise TimeoutError(f"no rows of step {step}:\n{run.tail()}")


def wait_until_gone(pid: int, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.1)
    raise TimeoutError(f"process {pid} is still there")
