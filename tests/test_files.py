"""Files are whole or as they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from viprl._files import read_arrays, replacing, write_text
from viprl.errors import InvalidInputError


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "new" / "state"
    write_text(path, "first é")
    with pytest.raises(KeyboardInterrupt):
        with replacing(path) as file:
            file.write(b"half of the sec")
            raise KeyboardInterrupt
    assert path.read_text(encoding="utf-8") == "first é"
    assert [p.name for p in path.parent.iterdir()] == ["state"]


def test_readers_meet_the_old_file_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_text(path, "old")
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut off", b"\x93NUMPY\x01\x00"])
def test_arrays_of_a_broken_archive_are_one_clear_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"x\.npz must be a whole"):
        read_arrays(path)
    np.save(tmp_path / "one.npy", np.zeros(3))
    assert read_arrays(tmp_path / "one.npy")[""].tolist() == [0, 0, 0]
    np.savez(tmp_path / "good.npz", a=np.arange(3))
    assert read_arrays(tmp_path / "good.npz")["a"].tolist() == [0, 1, 2]
    with pytest.raises(FileNotFoundError):
        read_arrays(tmp_path / "none.npz")
