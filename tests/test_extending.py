"""docs/extending.md and the README's loop: every example runs as it stands, and conforms."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import viprl

ROOT = Path(__file__).resolve().parents[1]


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)


EXAMPLES = blocks(ROOT / "docs" / "extending.md")


def run(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(source, "example", "exec"), names)
    return names


@pytest.mark.parametrize("source", EXAMPLES, ids=("predictor", "policy", "trainer"))
def test_examples_run_and_conform(source: str) -> None:
    assert len(source.splitlines()) < 100
    names = run(source)
    suites = [value for name, value in names.items() if name.startswith("Test")]
    for suite in suites:
        tests = [name for name in dir(suite) if name.startswith("test_")]
        assert tests
        for name in tests:
            getattr(suite(), name)()
    if "allocator" in names:
        allocator, rng = names["allocator"], np.random.default_rng(0)
        for _ in range(6):
            plan = allocator.allocate([f"q{i}" for i in range(16)], 128)
            allocator.observe(plan, [(rng.random(n) < q / 16).astype(float) for q, (_, n) in enumerate(plan)])
        assert allocator.metrics()["viprl/realised_variance_ratio"] > 0
        copy = type(allocator)(type(allocator.predictor)(), viprl.RLOO(), policy=allocator.policy)
        copy.load_state_dict(allocator.state_dict())
        ids = [f"q{i}" for i in range(16)]
        np.testing.assert_array_equal(copy.allocate(ids, 128).group_sizes, allocator.allocate(ids, 128).group_sizes)


def test_readme_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = [block for block in blocks(ROOT / "README.md") if "build_allocator" in block]
    lines = [line for line in source.splitlines() if line.strip() and not line.startswith("import")]
    assert len(lines) <= 10 and source.count("rloo") == 1
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    ids = [f"q{i}" for i in range(1024)]
    names: dict[str, Any] = {
        "ids": ids,
        "texts": [f"{i} + {i * i} =" for i in range(1024)],
        "batches": [ids[:512], ids[512:], ids[:512]],
        "rollout": lambda prompt_id, n: (rng.random(n) < (int(prompt_id[1:]) % 7) / 7).astype(float),
    }
    exec(source, names)
    assert names["advantages"].shape == (4096,) and (tmp_path / "allocator.ckpt").exists()
    assert names["allocator"].step == 3
