"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# no example is judged by the clock, which a busy machine would decide; a landing must not depend on the day's random
# examples, everywhere else they are drawn anew
settings.register_profile("anywhere", deadline=None)
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "anywhere")


@pytest.fixture(scope="session")
def viprl_data() -> Path:
    """Folder of the recorded logs; tests that need it are skipped, with the reason, where it is absent."""
    folder = Path(os.environ.get("VIPRL_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    if not (folder / "oneshot_rlvr_prompts.parquet").exists():
        pytest.skip(f"no recorded logs in {folder} (set VIPRL_DATA)")
    return folder
