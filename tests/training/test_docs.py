"""docs/train.md agrees with the configuration's class."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

pytest.importorskip("trl")

from viprl.settings import AllocationSettings, settings_fields
from viprl.tasks.registry import TASKS
from viprl.training.arguments import load_reward
from viprl.training.config import TrainConfig, load_config

PAGE = (Path(__file__).parents[2] / "docs" / "train.md").read_text(encoding="utf-8")
TABLE = dict(re.findall(r"^\| `([a-z_]+)` \| (.*?) \|", PAGE, re.M))
FIELDS = {item.name: item for item in dataclasses.fields(TrainConfig)}
SETTINGS = [item.name for item in settings_fields()]


def default(name: str) -> str:
    item = FIELDS[name]
    if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
        return "required"
    value = item.default if item.default is not dataclasses.MISSING else None
    return "none" if value in (None, ()) else f"`{list(value) if isinstance(value, tuple) else value}`"


def test_every_key_is_there_with_its_default() -> None:
    assert {name: default(name) for name in FIELDS if name not in SETTINGS} == TABLE


def test_settings_with_another_default_are_named() -> None:
    other = AllocationSettings()
    differ = [name for name in SETTINGS if FIELDS[name].default != getattr(other, name, None)]
    sentence = PAGE.partition("another default here:")[2].partition("Beside")[0]
    assert sorted(differ) == sorted(re.findall(r"`([a-z_]{6,})`", sentence.replace("`prompt_id`", "")))


def test_tasks_and_the_reward_are_as_documented(tmp_path: Path) -> None:
    assert all(f"`{task}`" in TABLE["task"] or f"`{task}`" in PAGE for task in TASKS)
    code = PAGE.partition("```python\ndef accuracy")[2].partition("```")[0]
    (tmp_path / "rewards.py").write_text("def accuracy" + code)
    reward = load_reward(f"{tmp_path}/rewards.py:accuracy", None)  # type: ignore[arg-type]
    assert reward(
        prompts=["a", "b"], completions=[[{"content": " 3"}], [{"content": "4"}]], answer=["3", "5"], x=1
    ) == [
        1.0,
        0.0,
    ]


def test_the_examples_problems_are_a_job(tmp_path: Path) -> None:
    block = PAGE.partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "job.yaml").write_text(f"{block}output: {tmp_path}/out\n")
    assert load_config(tmp_path / "job.yaml").task_settings["problem"] == "question"
