"""A job small enough for tests: a model of a few thousand parameters with a warm start of a few steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

TINY = {"layers": 1, "hidden": 16, "additions": 64, "clean_steps": 4, "teacher_steps": 2, "batch_size": 16}


@pytest.fixture
def write_config(tmp_path: Path):
    """Writes a configuration with the given changes and returns its path."""

    def write(**changes: Any) -> Path:
        values: dict[str, Any] = {
            "task": {"name": "arithmetic", "train_size": 16, "test_size": 8, "warm_start": TINY},
            "model": "tiny",
            "output": str(tmp_path / "job"),
            "cache": str(tmp_path / "cache"),
            "budget": 16,
            "group_size": 4,
            "steps": 3,
            "eval_every": 2,
            "eval_samples": 2,
            "trainer": {"learning_rate": 1e-3, "save_steps": 2},
            **changes,
        }
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(values))
        return path

    return write
