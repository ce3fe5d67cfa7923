"""`viprl arena`: rules compared at equal rollouts, on a model of a few thousand parameters."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("trl")

from viprl.cli import main
from viprl.errors import ConfigurationError
from viprl.reports.progress import Progress
from viprl.training.arena import Arena, cell_settings, paired_interval, read_results, run_arena, table

TINY = {"layers": 1, "hidden": 16, "additions": 64, "clean_steps": 4, "teacher_steps": 2, "batch_size": 16}


def small(folder: Path, **changes) -> Arena:
    task = {"name": "arithmetic", "train_size": 32, "test_size": 8, "too_hard": 0.5, "warm_start": TINY}
    settings = {"rollouts": 32, "budget": 16, "group_size": 4, "task": task, "eval_samples": 2, **changes}
    return Arena(folder / "arena", cache=folder / "cache", **settings)


def test_cells_spend_the_same_and_finished_ones_are_not_run_again(tmp_path: Path) -> None:
    shown: list[list[str]] = []
    arena = small(tmp_path, cells=["default", "vip"])
    assert run_arena(arena, Progress(), shown.append)
    rows = read_results(arena)
    assert [(row["cell"], row["seed"]) for row in rows] == [("uniform", 0), ("default", 0), ("vip", 0)]
    assert len({row["heldout_start"] for row in rows}) == 1
    for cell in arena.cells:
        metrics = (arena.output / f"{cell}-seed0" / "metrics.jsonl").read_text().splitlines()
        assert max(json.loads(line).get("rollouts", 0) for line in metrics) == 32
    assert rows[0]["groups"] == rows[2]["groups"] == 8
    assert [line.split()[0] for line in shown[-1]] == ["cell", "uniform", "default", "vip"]

    before = (arena.output / "results.jsonl").read_text()
    assert run_arena(arena, Progress(), shown.append) and shown[0] == shown[1]
    assert (arena.output / "results.jsonl").read_text() == before
    assert read_results(small(tmp_path, rollouts=64)) == []


def test_the_table_pairs_by_seed(tmp_path: Path) -> None:
    arena = small(tmp_path, cells=["top"], seeds=3)
    success = {"uniform": [0.5, 0.6, 0.7], "top": [0.6, 0.7, 0.75]}
    rows = [
        {"cell": cell, "seed": seed, "heldout": value, "live_share": 0.25}
        for cell, values in success.items()
        for seed, value in enumerate(values)
    ]
    lines = table(arena, rows)
    assert "0.600" in lines[1] and "+" not in lines[1]
    assert "+0.083 (+0.012 to +0.155)" in lines[2] and "25%" in lines[2]
    assert "(" not in table(arena, [row for row in rows if row["seed"] == 0])[2]


def test_the_interval_is_students(tmp_path: Path) -> None:
    values = [0.1, 0.1, 0.05, 0.0]
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    found = paired_interval(values)
    assert np.allclose([found.low, found.high], [low, high])
    assert not np.isfinite(paired_interval([0.1]).high)


def test_what_cannot_be_compared_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["arena", "--cells", "topp", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "'topp'" in said and "nearest: 'top'" in said and not (tmp_path / "out").exists()
    with pytest.raises(ConfigurationError, match="multiple of a step's 16, but got 40"):
        small(tmp_path, rollouts=40)
    with pytest.raises(ConfigurationError, match="seeds >= 1 must hold, but got 0"):
        small(tmp_path, seeds=0)
    assert cell_settings("unbiased")["selection"] == "unbiased" and cell_settings("uniform")["candidates"] == 1
