"""Parts of the job that need no training: output folder, metrics file."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("trl")

from viprl.errors import ConfigurationError
from viprl.training import load_config
from viprl.training.callbacks import MetricsFile
from viprl.training.job import prepare_output


def test_an_output_folder_is_never_mixed_up(write_config, tmp_path: Path):
    path = write_config()
    prepare_output(load_config(path))
    with pytest.raises(ConfigurationError, match="holds a job: set resume=true"):
        prepare_output(load_config(path))
    with pytest.raises(ConfigurationError, match="budget: 16 -> 32"):
        prepare_output(load_config(path, ["resume=true", "budget=32"]))
    keep = tmp_path / "job" / "notes.txt"
    keep.write_text("mine")
    (tmp_path / "job" / "vip-seed0").mkdir()
    prepare_output(load_config(path, ["overwrite=true", "budget=32"]))
    assert keep.exists() and not (tmp_path / "job" / "vip-seed0").exists()


def test_metrics_are_cut_back_and_survive_a_torn_line(tmp_path: Path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    for step in range(5):
        file.write({"step": step, "reward": float("nan") if step == 1 else 0.5})
    with open(file.path, "a") as stream:
        stream.write('{"step": 5, "rew')
    file.cut_back(3)
    assert [row["step"] for row in file.read()] == [0, 1, 2, 3] and file.read()[1]["reward"] is None
