"""Scores of a step, recomputed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from viprl.errors import InvalidInputError
from viprl.prediction import Prediction
from viprl.replay import PromptPool, Setting
from viprl.replay.engine.trace import Recorder
from viprl.variance import RLOO, DrGRPO

P = np.array([0.1, 0.5, 0.9, 0.0])
A = P * (1 - P)


def scored(sizes, setting=None, prediction=None, prepare=None):
    setting = setting or Setting(RLOO())
    world = PromptPool(list("abcd"), P, batch=4)
    step = next(iter(world.run(0)))
    order = step.rows.copy()
    if prepare is not None:
        prepare(step)
    recorder = Recorder("r", 0, 4, setting)
    given = np.asarray(sizes)[order] if len(sizes) == 4 else np.asarray(sizes)
    recorder.add(step, 4, None if prediction is None else prediction[order], given, 0.25)
    return recorder.trace


def value(trace, name):
    return float(np.asarray(trace.steps[name])[0])


def test_variance_against_uniform():
    trace = scored([4, 16, 9, 3])
    assert value(trace, "variance") == pytest.approx(A[0] / 3 + A[1] / 15 + A[2] / 8)
    assert value(trace, "uniform") == value(trace, "best_uniform") == pytest.approx(A.sum() / 7)
    assert value(trace, "rollouts") == value(trace, "budget") == 32
    assert value(trace, "best") < value(trace, "variance") and value(trace, "seconds") == 0.25


def test_dr_grpo_has_its_own_factor():
    trace = scored([8, 8, 8, 8], Setting(DrGRPO()))
    assert value(trace, "variance") == pytest.approx(A.sum() * 7 / 64)


def test_a_prompt_without_gradient_is_charged_its_whole_variance():
    for missing in (0, 1):
        trace = scored([8, missing, 8, 8])
        assert value(trace, "variance") == pytest.approx((A[0] + A[2]) / 7 + A[1])
        assert value(trace, "left_out") == 1
        assert value(trace, "missed") / value(trace, "signal") == pytest.approx(A[1] / A.sum())


def test_unspent_and_wasted_rollouts_are_compared_with_as_many_uniform_ones():
    trace = scored([8, 8, 8, 0])
    assert value(trace, "rollouts") == 24
    assert value(trace, "uniform") == pytest.approx(A.sum() / 5)
    wasted = scored([8, 8, 8, 0], prepare=lambda step: step.draw(np.arange(4), 4))
    assert value(wasted, "rollouts") == 28
    assert value(wasted, "uniform") == pytest.approx(A.sum() / 6)


def test_more_prompts_count_as_a_mean_over_more_prompts():
    world = PromptPool(list("abcd"), np.full(4, 0.5), batch=2)
    step = next(iter(world.run(0)))
    step.extend(2)
    recorder = Recorder("r", 0, 4, Setting(RLOO()))
    recorder.add(step, 2, None, np.full(4, 8), 0.0)
    trace = recorder.trace
    assert value(trace, "variance") == pytest.approx(4 * 0.25 / 7 * (2 / 4) ** 2)
    assert value(trace, "uniform") == pytest.approx(2 * 0.25 / 15)  # 32 rollouts over the two prompts
    assert value(trace, "prompts") == 2 and value(trace, "rollouts") == 32


def test_live_groups():
    trace = scored([4, 16, 9, 3])
    n = np.array([4, 16, 9, 3])
    assert value(trace, "live") == pytest.approx((1 - P**n - (1 - P) ** n).sum())
    assert value(trace, "uniform_live") == pytest.approx((1 - P**8 - (1 - P) ** 8).sum())


def test_losses_and_reliability_of_first_visits():
    mean = np.array([0.2, 0.5, 0.95, 0.0])
    trace = scored([8] * 4, prediction=Prediction.point(mean))
    q = np.clip(mean, 1e-3, 1 - 1e-3)
    losses = trace.losses["first"]
    assert losses["count"] == [4] and trace.losses["later"]["count"] == [0]
    assert losses["log_loss"][0] == pytest.approx(-(P * np.log(q) + (1 - P) * np.log(1 - q)).sum())
    assert losses["brier"][0] == pytest.approx((P * (1 - mean) ** 2 + (1 - P) * mean**2).sum())
    assert losses["absolute"][0] == pytest.approx(np.abs(P - mean).sum())
    assert trace.reliability[0, :, 0].tolist() == [1, 0, 1, 0, 0, 1, 0, 0, 0, 1]
    assert trace.reliability[0, 9].tolist() == pytest.approx([1, 0.95, 0.9])


def test_spending_is_by_success_rate():
    table = scored([4, 16, 9, 3]).spending["epoch 1"]
    assert table[:, 0].tolist() == [1, 1, 0, 0, 0, 1, 0, 0, 0, 1]
    assert table[5, 1] == 16 and table[0, 1] == 3 and table[:, 2].sum() == 32


def test_bounds_must_allow_a_variance():
    for low, high in ((1, 8), (5, 4)):
        with pytest.raises(InvalidInputError, match="2 <= min_group_size <= max_group_size"):
            Setting(RLOO(), low, high)
