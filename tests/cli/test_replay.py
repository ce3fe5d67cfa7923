"""``viprl replay`` and ``viprl forecast`` from files to report, as a user runs them."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from viprl.cli import main

VISITS, PROMPTS = 600, 30


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    rng = np.random.default_rng(0)
    p = rng.beta(0.5, 0.5, PROMPTS)
    rows = np.concatenate([rng.permutation(PROMPTS) for _ in range(VISITS // PROMPTS)])
    frame = pd.DataFrame(
        {
            "step": np.arange(VISITS) // 15,
            "prompt_id": [f"q{r}" for r in rows],
            "successes": rng.binomial(8, p[rows]),
            "n_rollouts": 8,
        }
    )
    folder = tmp_path_factory.mktemp("log")
    frame.to_parquet(folder / "log.parquet")
    frame.to_csv(folder / "log.csv", index=False)
    pd.DataFrame(
        {"prompt_id": [f"q{q}" for q in range(PROMPTS)], "text": [f"problem {q}" for q in range(PROMPTS)], "rate": p}
    ).to_json(folder / "prompts.jsonl", orient="records", lines=True)
    np.save(folder / "vectors.npy", rng.normal(size=(PROMPTS, 6)).astype(np.float32))
    return folder


def run(capsys, *arguments):
    status = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_from_a_log_to_a_report(capsys, log, tmp_path):
    rules = "uniform,vip:calibrated,vip:beta,vip:gp,dapo,vigor"
    command = ["replay", log / "log.parquet", "--prompts", log / "prompts.jsonl", "--embeddings", log / "vectors.npy"]
    command += ["--side-information", "rate", "--rules", rules, "--out", tmp_path, "--resamples", 200, "--jobs", 1]
    status, out, _ = run(capsys, *command)
    assert status == 0 and "read 600 rows of 1 file as history; kept 600" in out
    data = json.loads((tmp_path / "report.json").read_text())
    assert {row["rule"] for row in data["rules"]["later"]} == set(rules.split(","))
    assert data["headline"] in out and data["world"]["steps"] == 40
    assert (tmp_path / "report.html").exists() and (tmp_path / "report.png").exists()
    first = {row["rule"]: row["ratio"] for row in data["rules"]["later"]}
    assert run(capsys, *command)[0] == 0
    data = json.loads((tmp_path / "report.json").read_text())
    assert {row["rule"]: row["ratio"] for row in data["rules"]["later"]} == first


def test_the_same_log_as_csv_with_other_names(capsys, log, tmp_path):
    text = (log / "log.csv").read_text().replace("step,prompt_id,successes,n_rollouts", "it,q,right,of")
    (tmp_path / "mine.csv").write_text(text + "oops\n")
    command = ["replay", tmp_path / "mine.csv", "--columns", "step=it,prompt_id=q,successes=right,n_rollouts=of"]
    command += ["--rules", "uniform,vip:beta", "--out", tmp_path / "out", "--resamples", 50, "--jobs", 1]
    status, _, err = run(capsys, *command)
    assert status == 2 and err.startswith("viprl replay: mine.csv, line 602: 1 fields where the header has 4")
    status, out, _ = run(capsys, *command, "--on-error", "skip")
    assert status == 0 and "mine.csv, line 602" in out


@pytest.mark.parametrize(
    ("options", "phases"),
    [
        (["--protocol", "drift", "--batch", 16], ["start", "after solved", "after forgotten", "outage"]),
        (["LOG", "--protocol", "resample", "--group-size", 4], ["first visits", "later"]),
        (["LOG", "--outage", "10:4"], ["first visits", "later"]),
        (["LOG", "--protocol", "pool", "--batch", 10, "--draws", "common", "--seeds", "1,2"], ["epoch 1", "epoch 2"]),
        (["LOG", "--estimator", "dr_grpo", "--min-group-size", 4, "--max-group-size", 10], ["first visits", "later"]),
    ],
    ids=["drift", "resample", "outage", "pool", "dr_grpo"],
)
def test_protocols_and_options(capsys, log, tmp_path, options, phases):
    arguments = [log / "log.parquet" if o == "LOG" else o for o in options]
    rules = "uniform,vip:beta,mopps" if "resample" in options else "uniform,vip:beta,vip:beta+guard,gvm,dapo"
    status, _, err = run(
        capsys, "replay", *arguments, "--rules", rules, "--out", tmp_path, "--resamples", 50, "--jobs", 1
    )
    assert status == 0, err
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["phases"][: len(phases)] == phases and not data["failures"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay"], "the log protocol needs a log"),
        (["replay", "absent.jsonl"], "no such file or folder: absent.jsonl"),
        (["replay", "LOG", "--protocol", "drift"], "takes no log"),
        (["replay", "LOG", "--rules", "magic"], "a rule must be one of"),
        (["replay", "LOG", "--embeddings", "x.npy"], "need --prompts"),
        (["replay", "LOG", "--outage", "x:2"], "--outage must be whole numbers"),
        (["replay", "LOG", "--outage", "39:5"], "an outage must lie within the log's 40 steps"),
        (["replay", "LOG", "--columns", "step"], "--columns must be name=COLUMN pairs"),
        (["replay", "LOG", "--rules", "vip:gp"], "needs the prompts' embeddings"),
        (["replay", "LOG", "--min-group-size", "9", "--max-group-size", "8"], "min_group_size <= max_group_size"),
        (["replay", "LOG", "--protocol", "resample", "--max-group-size", "9"], "max_group_size <= rollouts recorded"),
        (["forecast", "--rates", "LOG", "--budget", "3", "--batch", "2"], "budget >= 2"),
        (["forecast", "--rates", "absent.csv", "--budget", "80"], "absent.csv"),
    ],
)
def test_errors_are_one_line_with_the_rule(capsys, log, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, *[log / "log.parquet" if a == "LOG" else a for a in arguments])
    assert status == 2 and message in err and err.startswith(f"viprl {arguments[0]}: ") and err.count("\n") == 1


def test_steps_that_no_sizes_fit_are_left_out_and_said(capsys, log, tmp_path):
    frame = pd.read_parquet(log / "log.parquet")
    few = frame["step"] == 7
    frame.loc[few, "n_rollouts"] = 2
    frame.loc[few, "successes"] = 1
    frame.to_parquet(tmp_path / "log.parquet")
    command = ["replay", tmp_path / "log.parquet", "--rules", "uniform,vip:beta", "--out", tmp_path / "out"]
    command += ["--resamples", 50, "--jobs", 1]
    status, out, _ = run(capsys, *command)
    assert status == 0 and "left out 1 steps: their rollouts do not fit" in out and "over 39 steps" in out
    status, _, err = run(capsys, *command, "--min-group-size", 9, "--max-group-size", 12)
    assert status == 2 and "no recorded step fits; mean rollouts a prompt: 7.85" in err


def test_forecast_in_words_and_json(capsys, log):
    status, out, _ = run(capsys, "forecast", "--rates", log / "log.parquet", "--budget", 240, "--batch", 30)
    assert status == 0 and "recommended: L = " in out and "30 prompts, 240 rollouts" in out
    status, out, _ = run(
        capsys,
        "forecast",
        "--rates",
        log / "prompts.jsonl",
        "--columns",
        "success_rate=rate",
        "--budget",
        240,
        "--json",
    )
    data = json.loads(out)
    assert status == 0 and data["lower"] <= 8 <= data["upper"] and len(data["reasons"]) >= 4
