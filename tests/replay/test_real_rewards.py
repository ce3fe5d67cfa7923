"""Logs whose rewards are more than successes: scored by the rewards' own variance, or refused with the remedy."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import viprl
from viprl.errors import ConfigurationError, InvalidInputError
from viprl.history import HISTORY_COLUMNS
from viprl.prompts import PromptSet
from viprl.replay import LogFormatError, RecordedLog, Setting, compare, read_log, summarize
from viprl.replay.lineup import default_lineup, not_for, parse_rule
from viprl.replay.log import hindsight_variance
from viprl.replay.request import ReplayRequest, run_request

PROMPTS, STEPS, N = 40, 24, 8
SETTING = Setting(viprl.RLOO(), 3, 32)


def history(kind, seed=0):
    """Half the prompts .5 +- .01, half 0/1 with p = .1; ``kind`` says what the successes are."""
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(STEPS):
        for q in range(PROMPTS):
            success = rng.random(N) < 0.1
            rewards = 0.5 + 0.01 * rng.normal(size=N) if q < PROMPTS // 2 else success.astype(float)
            told = {"nameless": None, "named": float(success.sum()), "summed": float(rewards.sum())}[kind]
            row = dict.fromkeys(HISTORY_COLUMNS) | {
                "step": step, "prompt_id": f"q{q:02d}", "visit": step, "successes": told, "n_rollouts": N,
                "reward_mean": rewards.mean(), "reward_var": rewards.var(ddof=1), "group_size": N,
            }  # fmt: skip
            rows.append(row)
    return pd.DataFrame(rows)


def written(tmp_path, frame):
    frame.to_parquet(tmp_path / "history.parquet")
    return tmp_path / "history.parquet"


@pytest.mark.parametrize("kind", ["nameless", "summed"])
def test_real_rewards_are_scored_by_their_variance(tmp_path, kind):
    log, report = read_log(written(tmp_path, history(kind)))
    assert log.rewards == "real" and any("name no success" in note for note in report.notices)
    world = RecordedLog(log)
    assert default_lineup(PromptSet(log.prompt_ids), world) == ["uniform", "vip:reward_variance"]
    result = compare(world, ["uniform", "vip:reward_variance"], PromptSet(log.prompt_ids), SETTING, jobs=1)
    assert not result.failures
    summary = summarize(result, world, SETTING, resamples=100)
    row = next(r for r in summary.headline_rows if r.rule == "vip:reward_variance")
    # all of the variance lies in one half; with what the others can spare there it would be (8 - 1) / (13 - 1) = .58
    assert 7 / 12 - 0.02 < row.ratio.estimate < 0.75 and row.verdict == "better"
    assert summary.calibration == [] and 7 / 12 - 0.02 < summary.best_ratio[summary.headline_phase] < 0.75


def test_the_wrong_half_is_charged_by_the_true_variance(tmp_path):
    """An allocation that goes by p (1 - p) of the mean reward feeds the prompts whose rewards hardly differ."""
    log, _ = read_log(written(tmp_path, history("nameless")))
    step = next(iter(RecordedLog(log).run(0)))
    quiet = np.arange(PROMPTS) < PROMPTS // 2
    sizes = np.where(quiet, 12, 4)
    assert step.weight[quiet].max() < 1e-3
    misled = (step.weight / (sizes - 1)).sum() / (step.weight / (N - 1)).sum()
    assert misled == pytest.approx(7 / 3, rel=0.02)


def test_a_named_success_is_learnt_and_the_whole_reward_scored(tmp_path):
    log, report = read_log(written(tmp_path, history("named")))
    assert log.rewards == "named success" and log.successes.max() <= N
    assert any("more than the successes" in note for note in report.notices)
    world = RecordedLog(log)
    step = next(iter(world.run(0)))
    assert step.weight.tolist() == np.asarray(log.variances)[: len(step)].tolist()
    assert step.learn(np.full(len(step), 3))[0].tolist() == log.successes[: len(step)].tolist()
    lineup = default_lineup(PromptSet(log.prompt_ids), world)
    assert "vip:beta" in lineup and not {"gvm", "vigor", "pilot_commit"} & set(lineup)
    assert "looks at successes inside" in not_for(parse_rule("gvm"), world)


def test_binary_rewards_of_any_range_stay_binary(tmp_path):
    rng = np.random.default_rng(0)
    frame = history("named")
    frame["successes"] = rng.binomial(N, 0.3, len(frame)).astype(float)
    frame["reward_mean"] = 2 * frame["successes"] / N - 1
    frame["reward_var"] = 4 * frame["successes"] * (N - frame["successes"]) / (N * (N - 1))
    log, report = read_log(written(tmp_path, frame))
    assert log.rewards == "binary" and log.variances is None and not report.notices


def test_sums_of_real_rewards_alone_are_refused_with_the_remedy(tmp_path):
    frame = history("summed").drop(columns=["reward_mean", "reward_var"])
    for on_error in ("stop", "skip"):  # what could be skipped is one kind of prompt
        with pytest.raises(
            LogFormatError, match="sums of real rewards; such a log needs the reward_mean.*so it is with"
        ):
            read_log(written(tmp_path, frame), on_error=on_error)


def test_rules_that_need_successes_are_refused_before_anything_is_written(tmp_path):
    path = written(tmp_path, history("nameless"))
    request = ReplayRequest(log=str(path), rules=["uniform", "vip:beta"], out=str(tmp_path / "out"))
    with pytest.raises(ConfigurationError, match="vip:reward_variance; log the successes"):
        run_request(request, say=lambda line: None)
    assert not (tmp_path / "out").exists()
    with pytest.raises(InvalidInputError, match="resampling needs a log of successes"):
        run_request(ReplayRequest(log=str(path), protocol="resample", group_size=4), say=lambda line: None)


def test_the_whole_replay_of_a_real_history(tmp_path):
    path = written(tmp_path, history("nameless"))
    request = ReplayRequest(log=str(path), out=str(tmp_path / "out"), resamples=50, jobs=1)
    result = run_request(request, say=lambda line: None)
    assert {row.rule for row in result.summary.headline_rows} == {"uniform", "vip:reward_variance"}
    assert (tmp_path / "out" / "report.html").exists()


def test_hindsight_variance_is_the_faded_mean_of_the_other_visits(tmp_path):
    log, _ = read_log(written(tmp_path, history("nameless")))
    variances = np.asarray(log.variances)
    mine = np.flatnonzero(log.rows == 30)
    place = 5
    fades = np.array([0.8 ** abs(other - place) for other in range(len(mine))])
    fades[place] = 0
    total = (fades * variances[mine] * (N - 1)).sum() + 0.75 * variances.mean()
    assert hindsight_variance(log)[mine[place]] == pytest.approx(total / (fades.sum() * (N - 1) + 0.75))
