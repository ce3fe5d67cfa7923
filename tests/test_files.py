"""Files are whole or as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from viprl._files import replacing, write_text


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
