"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def viprl_data() -> Path:
    """Folder of the recorded logs; tests that need it are skipped, with the reason, where it is absent."""
    folder = Path(os.environ.get("VIPRL_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    if not (folder / "oneshot_rlvr_prompts.parquet").exists():
        pytest.skip(f"no recorded logs in {folder} (set VIPRL_DATA)")
    return folder
