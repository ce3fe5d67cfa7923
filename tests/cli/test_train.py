"""`viprl train`: the command's own behaviour; jobs from end to end are in tests/training."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

pytest.importorskip("trl")

from viprl.cli import main


@pytest.fixture
def write_config(tmp_path: Path):
    """Writes a configuration with the given changes and returns its path."""

    def write(**changes: object) -> Path:
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump({"task": "arithmetic", "output": str(tmp_path / "job"), **changes}))
        return path

    return write


def test_help_names_the_overrides(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "--help"])
    assert stop.value.code == 0 and "key=value" in capsys.readouterr().out


def test_a_missing_file_is_one_line(tmp_path: Path, capsys):
    assert main(["train", str(tmp_path / "none.yaml")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("viprl train: the configuration must be a readable file") and said.count("\n") == 1


@pytest.mark.parametrize(
    "override", ["trainer.loss_type=bnpo", "trainer.optim=no_such_optimizer", "trainer.lr_scheduler_type=zigzag"]
)
def test_settings_that_trl_refuses_are_one_line(write_config, capsys, tmp_path: Path, override):
    path = write_config(cache=str(tmp_path / "cache"))
    assert main(["train", str(path), override]) == 2
    assert not (tmp_path / "cache").exists()  # refused before the warm start is trained
    assert capsys.readouterr().err.count("\n") == 1


def test_errors_are_one_line(write_config, capsys):
    assert main(["train", str(write_config()), "polcy=vip"]) == 2
    said = capsys.readouterr().err
    assert (
        said.startswith("viprl train: every key must be one that is known, but got 'polcy'") and said.count("\n") == 1
    )
    assert main(["train", str(write_config()), "task=no_such_task"]) == 2


def test_tiny_needs_a_task_with_a_model(write_config, capsys):
    path = write_config(task={"name": "reasoning_gym/chain_sum", "train_size": 8, "test_size": 4})
    assert main(["train", str(path)]) == 2
    assert "`model: tiny` needs a task that brings its own model" in capsys.readouterr().err
