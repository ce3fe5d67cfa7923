"""TRL's completion files: two real runs of stock TRL 1.16 (see make_trl_files.py), and damaged copies of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from viprl.prompts.ids import content_hash
from viprl.replay import LogFormatError, read_log
from viprl.replay.readers.trl_completions import overlap

FILES = Path(__file__).parent / "files"


def truth(name: str) -> list[dict[str, tuple[int, int]]]:
    """For each generation: prompt_id -> (successes, rollouts), as the reward function saw them."""
    generations = []
    pending: dict[str, tuple[int, int]] = {}
    for call in json.loads((FILES / name / "truth.json").read_text()):
        for prompt, reward in zip(call["prompts"], call["rewards"], strict=True):
            k, n = pending.get(content_hash(prompt), (0, 0))
            pending[content_hash(prompt)] = (k + int(reward), n + 1)
        if sum(n for _, n in pending.values()) == 24:  # evaluation comes in two halves
            generations.append(pending)
            pending = {}
    return generations


@pytest.mark.parametrize("name", ["trl", "trl_with_evaluation"])
def test_a_real_run_is_read_as_it_happened(name):
    log, report = read_log(FILES / name)
    assert report.format == "trl" and report.rows == 192
    found = [
        {
            log.prompt_ids[log.rows[v]]: (int(log.successes[v]), int(log.rollouts[v]))
            for v in range(step.start, step.stop)
        }
        for step in log.steps()
    ]
    assert found == truth(name)
    assert report.dropped["repeats of a generation that an earlier file holds"] == 192 - 24 * len(found)
    assert any("evaluation" in notice for notice in report.notices)
    assert not any("apart" in notice for notice in report.notices)
    assert report.texts[log.prompt_ids[0]].endswith(">")


def test_generations_lost_between_files_are_said(tmp_path):
    shutil.copytree(FILES / "trl" / "completions", tmp_path / "completions")
    for number in (3, 4, 5):
        (tmp_path / "completions" / f"completions_{number:05d}.parquet").unlink()
    log, report = read_log(tmp_path)
    assert log.n_steps == 3  # generations 1, 3 (seen in file 6) and 4
    assert any("up to 4 steps apart" in notice for notice in report.notices)


def test_a_cut_off_file_stops_or_is_skipped(tmp_path):
    shutil.copytree(FILES / "trl" / "completions", tmp_path / "completions")
    victim = tmp_path / "completions" / "completions_00003.parquet"
    data = victim.read_bytes()
    for length in (0, 1, 4, len(data) // 2, len(data) - 1):
        victim.write_bytes(data[:length])
        with pytest.raises(LogFormatError, match=r"completions_00003.parquet.*whole parquet file"):
            read_log(tmp_path)
        log, report = read_log(tmp_path, on_error="skip")
        assert report.malformed_rows == 1 and log.n_steps == 4  # file 4 repeats what file 3 held


def test_rows_without_reward_or_prompt(tmp_path):
    frame = pd.read_parquet(FILES / "trl" / "completions" / "completions_00001.parquet")
    frame["reward"] = frame["reward"].astype(object)
    frame.loc[0, "reward"] = None
    frame.loc[5, "prompt"] = None
    target = tmp_path / "completions_00001.parquet"
    frame.to_parquet(target)
    with pytest.raises(LogFormatError, match="line 6: `prompt` is neither text nor messages"):
        read_log(target)
    log, report = read_log(target, on_error="skip")
    assert log.rollouts.sum() == 22
    assert report.dropped["the reward is missing"] == 1 and report.examples == [
        (target.name, 6, "`prompt` is neither text nor messages")
    ]


def test_chat_prompts_and_a_choice_of_rewards(tmp_path):
    prompts = [[{"role": "user", "content": "2 + 2?"}]] * 4 + [[{"role": "user", "content": "3 + 3?"}]] * 4
    frame = pd.DataFrame(
        {
            "step": 1,
            "prompt": prompts,
            "completion": [[{"role": "assistant", "content": str(i)}] for i in range(8)],
            "right": [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0],
            "style": [0.3, 0.4, 0.5, 0.6] * 2,
            "advantage": 0.0,
        }
    )
    frame.to_parquet(tmp_path / "completions_00001.parquet")
    with pytest.raises(LogFormatError, match=r"several numeric columns \(right, style\).*--reward-column"):
        read_log(tmp_path)
    log, report = read_log(tmp_path, reward_column="right")
    assert log.successes.tolist() == [1, 2] and log.prompt_ids[0] == content_hash(prompts[0])
    assert report.texts[log.prompt_ids[1]] == "3 + 3?"
    with pytest.raises(LogFormatError, match="--success-at"):
        read_log(tmp_path, reward_column="style")
    log, _ = read_log(tmp_path, reward_column="style", success_at=0.5)
    assert log.successes.tolist() == [2, 2]
    with pytest.raises(LogFormatError, match="reward column must be in"):
        read_log(tmp_path, reward_column="nothing")


def test_a_prompt_twice_in_a_batch_is_said(tmp_path):
    rows = [(f"p{i % 3}" if i < 24 else "p0", i % 2) for i in range(36)]
    frame = pd.DataFrame(
        {
            "step": 1,
            "prompt": ["a"] * 8 + ["b"] * 4 + ["c"] * 4 + ["d"] * 4,
            "completion": [str(i) for i in range(20)],
            "reward": [float(r) for _, r in rows[:20]],
            "advantage": 0.0,
        }
    )
    frame.to_parquet(tmp_path / "completions_00001.parquet")
    log, report = read_log(tmp_path)
    assert sorted(log.rollouts.tolist()) == [4, 4, 4, 8]
    assert any("multiple of the usual 4" in notice for notice in report.notices)


@pytest.mark.parametrize(
    ("before", "rows", "expected"),
    [
        ([], [1, 2], 0),
        ([1, 2], [1, 2], 2),
        ([1, 2, 3], [3, 4, 5], 1),
        ([1, 2, 3], [2, 3, 9], 2),
        ([1, 1, 1], [1, 1, 2], 2),
        ([1, 2], [2, 1], 1),
        ([1, 2], [5, 2], 0),
    ],
)
def test_overlap_of_consecutive_files(before, rows, expected):
    assert overlap(before, rows) == expected
