"""Figures of three simple predictors on the recorded log and pool, to the digits that an independent script prints.

That script (plain numpy, its own heap allocation) shares no code with the package; its output is quoted here.
"""

from __future__ import annotations

import pandas as pd
import pytest

from viprl.prompts import PromptSet
from viprl.replay import PromptPool, RecordedLog, Setting, read_log, replay
from viprl.replay.lineup import build_rule, parse_rule
from viprl.replay.worlds import rates_to_probabilities
from viprl.variance import RLOO

pytestmark = pytest.mark.data
SETTING = Setting(RLOO())

# first visit nll, later nll, later mae, ratio
LOG = {
    "vip:global_mean": ("0.6451", "0.6698", "0.3440", "1.0000"),
    "vip:last_rate": ("0.6380", "0.4364", "0.1029", "1.1087"),
    "vip:beta": ("0.6466", "0.3425", "0.0899", "0.8033"),
}
# epoch -> nll, mae, ratio, oracle, live
POOL = {
    "vip:global_mean": {
        "epoch 1": ("0.6825", "0.3598", "1.0000", "0.7042", "1.0000"),
        "epoch 2": ("0.6821", "0.3595", "1.0000", "0.7044", "1.0000"),
    },
    "vip:last_rate": {
        "epoch 1": ("0.6931", "0.3566", "1.0000", "0.7042", "1.0000"),
        "epoch 2": ("0.3875", "0.0699", "1.0609", "0.7044", "0.9615"),
    },
    "vip:beta": {
        "epoch 1": ("0.6826", "0.3579", "1.0000", "0.7042", "1.0000"),
        "epoch 2": ("0.3365", "0.0737", "0.8365", "0.7044", "1.0000"),
    },
}


@pytest.fixture(scope="module")
def log_world(viprl_data):
    log, report = read_log(viprl_data / "oneshot_rlvr_visits_first250.parquet")
    assert log.repeats == 26 and report.kept == 32_000
    return RecordedLog(log)


@pytest.fixture(scope="module")
def pool_world(viprl_data):
    pool = pd.read_parquet(viprl_data / "deepscaler_passrate_dev.parquet")
    p = rates_to_probabilities(pool["successes"], pool["n_rollouts"])
    return PromptPool(pool["prompt_id"].tolist(), p, draws="reference")


@pytest.mark.parametrize("rule", LOG)
def test_recorded_log(log_world, rule):
    trace = replay(log_world, build_rule(parse_rule(rule), PromptSet(log_world.prompt_ids), SETTING, 0), SETTING)
    found = (
        trace.loss("first", "log_loss").sum() / trace.loss("first", "count").sum(),
        trace.loss("later", "log_loss").sum() / trace.loss("later", "count").sum(),
        trace.loss("later", "absolute").sum() / trace.loss("later", "count").sum(),
        trace.column("variance", "later").sum() / trace.column("uniform", "later").sum(),
    )
    assert tuple(f"{value:.4f}" for value in found) == LOG[rule]


@pytest.mark.parametrize("rule", POOL)
def test_pool_over_three_seeds(pool_world, rule):
    traces = [
        replay(pool_world, build_rule(parse_rule(rule), PromptSet(pool_world.prompt_ids), SETTING, s), SETTING, seed=s)
        for s in (3, 4, 5)
    ]
    for epoch, expected in POOL[rule].items():
        rows = []
        for trace in traces:
            count = sum(trace.loss(kind, "count", epoch).sum() for kind in ("first", "later"))
            total = {
                name: sum(trace.loss(kind, name, epoch).sum() for kind in ("first", "later"))
                for name in ("log_loss", "absolute")
            }
            column = {n: trace.column(n, epoch).sum() for n in ("variance", "uniform", "best", "live", "uniform_live")}
            rows.append(
                (
                    total["log_loss"] / count,
                    total["absolute"] / count,
                    column["variance"] / column["uniform"],
                    column["best"] / column["uniform"],
                    column["live"] / column["uniform_live"],
                )
            )
        assert tuple(f"{sum(values) / 3:.4f}" for values in zip(*rows, strict=True)) == expected
