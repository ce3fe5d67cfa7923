"""The default predictor on the recorded run and the pool of known rates: the figures it must reach, with one setting.

The bounds leave the reference (a discounted Beta: log .6466 / .3425 / .8033, pool .6826 / 1.000 and .3365 / .8365)
behind where text can help and never fall behind it where it cannot.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from viprl.prediction import CalibratedPredictor, DiscountedBeta

pytest.importorskip("pandas")
pytestmark = [pytest.mark.data, pytest.mark.slow]


@pytest.fixture(scope="module")
def protocols():
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "prediction_accuracy.py"
    spec = importlib.util.spec_from_file_location("prediction_accuracy", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def log(protocols, viprl_data):
    return protocols.replay_log(CalibratedPredictor, viprl_data)


def test_protocols_reproduce_the_reference(protocols, viprl_data):
    found = protocols.replay_log(lambda *_, prompt_ids, **__: DiscountedBeta(prompt_ids), viprl_data)
    assert [f"{found[name]:.4f}" for name in ("first nll", "later nll", "ratio")] == ["0.6466", "0.3425", "0.8033"]


def test_recorded_run_from_text_alone(log):
    assert log["first nll"] <= 0.605
    assert log["later nll"] <= 0.3415
    assert log["ratio"] <= 0.800
    assert log["first calibration"] <= 0.045
    assert log["later calibration"] <= 0.03


def test_recorded_run_with_another_models_pass_rate(protocols, viprl_data, log):
    found = protocols.replay_log(CalibratedPredictor, viprl_data, side=True)
    assert found["first nll"] <= 0.525
    assert found["later nll"] <= log["later nll"] + 0.0005
    assert found["ratio"] <= 0.800


@pytest.mark.parametrize("texts", [True, False])
def test_recorded_run_with_embeddings_of_other_prompts(protocols, viprl_data, texts):
    found = protocols.replay_log(CalibratedPredictor, viprl_data, shuffle=0, texts=texts)
    assert found["first nll"] <= 0.6466 + 0.005
    assert found["later nll"] <= 0.3425 + 0.005
    assert found["ratio"] <= 0.8033 + 0.005


@pytest.mark.parametrize("start", [5, 60, 120, 200])
def test_recorded_run_with_twenty_steps_of_zero_rewards(protocols, viprl_data, start):
    assert protocols.replay_log(CalibratedPredictor, viprl_data, outage=range(start, start + 20))["ratio"] <= 0.815


def test_pool_of_known_rates(protocols, viprl_data):
    found = protocols.replay_pool(CalibratedPredictor, viprl_data)
    assert found["epoch 1 nll"] <= 0.622
    assert found["epoch 1 ratio"] <= 0.997
    assert found["epoch 2 nll"] <= 0.335
    assert found["epoch 2 ratio"] <= 0.834
    assert max(found["epoch 1 calibration"], found["epoch 2 calibration"]) <= 0.03


def test_pool_with_embeddings_of_other_prompts(protocols, viprl_data):
    found = protocols.replay_pool(CalibratedPredictor, viprl_data, seeds=(3,), shuffle=0, texts=False)
    assert found["epoch 1 nll"] <= 0.6826 + 0.005
    assert found["epoch 1 ratio"] <= 1.005
    assert found["epoch 2 nll"] <= 0.3365 + 0.005
    assert found["epoch 2 ratio"] <= 0.8365 + 0.005
