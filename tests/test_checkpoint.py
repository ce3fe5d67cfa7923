"""Checkpoints: exact round trips, whole files, honest errors."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import viprl.checkpoint
from viprl.checkpoint import read_state, write_state
from viprl.errors import CheckpointError

scalars = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=5)
arrays = hnp.arrays(
    st.sampled_from([np.float64, np.float32, np.int64, np.int8, np.bool_]), hnp.array_shapes(max_dims=2, max_side=4)
)
trees = st.recursive(
    scalars | arrays,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


def same(left: object, right: object) -> bool:
    if isinstance(left, np.ndarray):
        return (
            isinstance(right, np.ndarray)
            and left.dtype == right.dtype
            and np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
        )
    if isinstance(left, dict):
        return isinstance(right, dict) and left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


@given(state=st.dictionaries(st.text("abc", min_size=1, max_size=3), trees, max_size=4))
def test_round_trip_is_exact(tmp_path_factory: pytest.TempPathFactory, state: dict[str, object]) -> None:
    path = tmp_path_factory.mktemp("state") / "x.ckpt"
    write_state(path, state)
    assert same(state, read_state(path))


def test_a_crash_while_writing_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.ckpt"
    write_state(path, {"step": 1})

    def crash(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(OSError, match="disk full"):
        write_state(path, {"step": 2})
    monkeypatch.undo()
    assert read_state(path) == {"step": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.ckpt"]


@pytest.mark.parametrize("damage", [b"", b"not a zip", None])
def test_damaged_files_are_named(tmp_path: Path, damage: bytes | None) -> None:
    path = tmp_path / "x.ckpt"
    write_state(path, {"a": np.arange(100)})
    path.write_bytes(path.read_bytes()[:-40] if damage is None else damage)
    with pytest.raises(CheckpointError, match=r"x\.ckpt must be a whole viprl checkpoint"):
        read_state(path)


def test_other_formats_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.ckpt"
    monkeypatch.setattr(viprl.checkpoint, "FORMAT", 99)
    write_state(path, {})
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="format 3 must hold, but .* has format 99"):
        read_state(path)


def test_a_missing_file_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_state(tmp_path / "none")


@pytest.mark.parametrize("state", [{"f": lambda: 0}, {"o": np.array([object()])}, {"d": {1: 2}}])
def test_what_cannot_be_stored_exactly_is_refused(tmp_path: Path, state: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match="state must"):
        write_state(tmp_path / "x", state)
    assert not list(tmp_path.iterdir())
