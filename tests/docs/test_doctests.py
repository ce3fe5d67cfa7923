"""The examples in the docstrings do what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src"
MODULES = sorted(
    ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
    for path in (SRC / "viprl").rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


def test_there_are_some() -> None:
    assert MODULES


@pytest.mark.parametrize("name", MODULES)
def test_examples_hold(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(name)
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(module)
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples of {name} fail"
