"""The sequence of plans on the recorded run, as it was decided before: ``benchmarks/plan_digests.py``.

Plans of predictors that add and divide alone are the same on every machine. The calibrated predictor solves linear
systems, whose last digits are the processor's, so its group sizes are compared by their spread.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pandas")
pytestmark = [pytest.mark.data, pytest.mark.slow]

EXPECTED = json.loads((Path(__file__).parent / "recorded_plans.json").read_text())


@pytest.fixture(scope="module")
def script() -> Any:
    path = Path(__file__).resolve().parents[1] / "benchmarks" / "plan_digests.py"
    spec = importlib.util.spec_from_file_location("plan_digests", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_plans_are_the_recorded_ones(script: Any, viprl_data: Path) -> None:
    found = script.digests(viprl_data)
    assert found == {name: value for name, value in EXPECTED.items() if "calibrated" not in name}


def test_calibrated_plans_are_spread_as_recorded(script: Any, viprl_data: Path) -> None:
    for name, value in script.digests(viprl_data, calibrated=True).items():
        np.testing.assert_allclose(value["squares"], EXPECTED[name]["squares"], rtol=0.02, err_msg=name)
