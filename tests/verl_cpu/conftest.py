"""Paths and the test world. Nothing of verl is imported in the test process: runs are processes of their own."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

_verl = importlib.util.find_spec("verl")
if _verl is None or _verl.origin is None:  # absent, or just a folder of that name
    collect_ignore_glob = ["test_*.py"]
elif "verl_cpu" not in sys.modules:
    # the package's own __init__ registers with verl; here only its plain modules are wanted
    package = types.ModuleType("verl_cpu")
    package.__path__ = [str(HERE / "verl_cpu")]
    sys.modules["verl_cpu"] = package
    sys.path.insert(0, str(HERE))


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with ``tiny`` (model), ``train.parquet`` (24 prompts), ``few.parquet`` (16), ``faulty.parquet`` (8),
    ``mixed.parquet`` (40, three of five unsolvable) and ``val.parquet``."""
    from verl_cpu.world import make_model, make_rows, write_rows

    folder = tmp_path_factory.mktemp("world")
    make_model(folder / "tiny")
    write_rows(make_rows(24), folder / "train.parquet")
    write_rows(make_rows(16), folder / "few.parquet")
    write_rows(make_rows(8, faults=[None] * 4 + ["rollout", "nan", "none", "raise"]), folder / "faulty.parquet")
    write_rows(make_rows(40, levels=(0, 0, 4, 0, 4)), folder / "mixed.parquet")
    write_rows(make_rows(6, split="test"), folder / "val.parquet")
    return folder
