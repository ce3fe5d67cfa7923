"""Guarded, no predictor, variance model or policy does worse than uniform groups: ``benchmarks/guarded_worlds.py``."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[1] / "benchmarks" / "guarded_worlds.py"
SPEC = importlib.util.spec_from_file_location("guarded_worlds", PATH)
worlds = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(worlds)

LIMIT = 1.02
LIMIT_MAXRL = 1.025  # a step of a policy that harms costs three times uniform's there, and one is let through


@pytest.mark.parametrize("model", ["rloo", "learned rloo"])
def test_a_harmful_policy_is_held(model: str) -> None:
    held, used = worlds.ratio("discounted_beta", model, "InverseVariance")
    free, _ = worlds.ratio("discounted_beta", model, "InverseVariance", guard=False)
    assert held <= LIMIT < 1.5 < free and used < 10


def test_a_good_one_is_let_go() -> None:
    for model in ("rloo", "grpo", "learned rloo"):
        ratio, used = worlds.ratio("discounted_beta", model, "VIP")
        assert ratio < 0.95 and used > 90


@pytest.mark.slow
@pytest.mark.parametrize(("predictor", "model", "policy"), worlds.combinations())
def test_realised_variance_stays_below_uniforms(predictor: str, model: str, policy: str) -> None:
    ratio, _ = worlds.ratio(predictor, model, policy)
    assert ratio <= (LIMIT_MAXRL if model == "maxrl" else LIMIT)
