"""Parts of the job that need no training: output folder, metrics file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("trl")

from viprl.errors import ConfigurationError
from viprl.training import load_config, run_job
from viprl.training.callbacks import MetricsFile
from viprl.training.job import prepare_output
from viprl.training.run import runs_of


def test_an_output_folder_is_never_mixed_up(write_config, tmp_path: Path):
    path = write_config()
    config = load_config(path)
    prepare_output(config)
    prepare_output(config)  # nothing was recorded yet: a job that failed at once may be corrected
    runs_of(config)[0].metrics.write({"step": 1, "reward": 0.5})
    with pytest.raises(ConfigurationError, match="holds a job: set resume=true"):
        prepare_output(load_config(path))
    with pytest.raises(ConfigurationError, match="budget: 16 -> 32"):
        prepare_output(load_config(path, ["resume=true", "budget=32"]))
    keep = tmp_path / "job" / "notes.txt"
    keep.write_text("mine")
    (tmp_path / "job" / "vip-seed0").mkdir(exist_ok=True)
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


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trainer.learning_rate=abc", "trainer.learning_rate must be a number, but got 'abc'"),
        ("trainer.logging_steps=true", "trainer.logging_steps must be"),
        ("trainer.optim=nonsense", "TRL refused the settings"),
        ("reward=no_such_module:f", "`reward` must name a function"),
        ("trainer.per_device_train_batch_size=5", "multiple of per_device_train_batch_size"),
    ],
)
def test_what_cannot_run_is_refused_before_a_file_is_written(write_config, override, words, tmp_path: Path):
    path = write_config()
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        run_job(load_config(path, [override]))
    assert not (tmp_path / "job").exists() and not (tmp_path / "cache").exists()
