"""The examples run and the documentation agrees with the code."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl")

from viprl.integrations.trl.config import AdaptiveFields
from viprl.integrations.trl.weights import LOSSES
from viprl.settings import settings_fields

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "integrations" / "trl.md").read_text(encoding="utf-8")


def test_every_setting_is_documented():
    own = {field.name for field in dataclasses.fields(AdaptiveFields)} - {item.name for item in settings_fields()}
    table = PAGE.split("## Settings")[1].split("What follows")[0]
    assert own == set(re.findall(r"^\| `([a-z_]+)`", table, re.M)) and "settings.md" in table


def test_weights_table_is_the_codes():
    table = PAGE.split("## Which settings")[1].split("They hold for")[0]
    for line in (line for line in table.splitlines() if line.startswith("| `") or line.startswith("| RLOO")):
        losses = re.findall(r"`([a-z_]+)`", line.split("|")[1]) or ["rloo"]
        for loss in losses:
            assert LOSSES[loss].equal == (line.split("|")[2].strip() == "yes"), loss
    assert all(f"`{loss}`" in table for loss in LOSSES if loss != "rloo")


def run(script: str, *arguments: str, folder: Path) -> str:
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "VIPRL_CACHE": str(folder / "cache"),
    }  # fmt: skip
    command = [sys.executable, str(ROOT / "examples" / script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_own_loop(tmp_path):
    lines = run("own_loop.py", "--steps", "40", "--seeds", "2", folder=tmp_path).splitlines()
    noise = [float(line.rsplit(" ", 1)[1]) for line in lines]
    assert noise[1] < noise[0]


@pytest.mark.slow
def test_two_lines(tmp_path):
    printed = run("two_lines.py", "--steps", "2", "--batch", "32", "--warm-start", "5", folder=tmp_path)
    groups = [int(line.split()[-1]) for line in printed.splitlines() if "p = " in line]
    assert len(groups) == 4 and sum(groups) == 32
