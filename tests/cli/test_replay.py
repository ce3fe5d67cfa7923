"""``viprl replay`` and ``viprl forecast`` from files to report, as a user runs them."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from viprl.cli import main
from viprl.replay import read_log
from viprl.replay.request import ReplayRequest, build_world

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
    assert data["selection"]["basis"] == "recorded" and data["selection"]["steps"] == 10
    assert "Selection (learnability, 4 candidates a prompt) at the same rollouts" in out
    assert "What selecting prompts would have saved" in (tmp_path / "report.html").read_text()
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
    assert status == 2 and err.startswith(
        "viprl replay: mine.csv, line 602: must have the header's 4 fields, but has 1"
    )
    status, out, _ = run(capsys, *command, "--on-error", "skip")
    assert status == 0 and "mine.csv, line 602" in out


@pytest.mark.parametrize(
    ("options", "phases"),
    [
        (["--protocol", "drift", "--batch", 16], ["start", "after solved", "after forgotten", "outage"]),
        (["LOG", "--protocol", "resample", "--group-size", 4], ["first visits", "later"]),
        (["LOG", "--outage", "10:4"], ["first visits", "later"]),
        (["LOG", "--protocol", "pool", "--batch", 10, "--seeds", "1,2"], ["epoch 1", "epoch 2"]),
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
        (["replay", "LOG", "--rules", "magic"], "a rule's `policy` must be one of"),
        (["replay", "LOG", "--embeddings", "x.npy"], "need --prompts"),
        (["replay", "LOG", "--outage", "x:2"], "--outage must be whole numbers"),
        (["replay", "LOG", "--outage", "39:5"], "an outage must lie within the log's 40 steps"),
        (["replay", "LOG", "--columns", "step"], "--columns must be name=COLUMN pairs"),
        (["replay", "LOG", "--rules", "vip:gp"], "needs embeddings (--prompts, --embeddings)"),
        (["replay", "LOG", "--min-group-size", "9", "--max-group-size", "8"], "min_group_size <= max_group_size"),
        (["replay", "LOG", "--protocol", "resample", "--max-group-size", "9"], "max_group_size <= rollouts recorded"),
        (["replay", "LOG", "--group-size", "nan"], "`group_size` must be a number >= 2, but got nan"),
        (["replay", "LOG", "--resamples", "0"], "`resamples` must be a number >= 40, but got 0"),
        (["replay", "LOG", "--jobs", "-1"], "`jobs` must be a number >= 1, but got -1"),
        (["replay", "LOG", "--success-at", "inf"], "`success_at` must be a finite number"),
        (["replay", "LOG", "--seeds", "-1"], "`seeds` must be >= 0"),
        (["replay", "LOG", "--rollouts", "8"], "a log has its own counts"),
        (["replay", "LOG", "--columns", "it=step"], "but got it=step"),
        (["replay", "LOG", "--columns", "ID=prompt_id"], "the other way round it is one: prompt_id=ID"),
        (
            ["replay", "LOG", "--columns", "step=iteration"],
            "has no column 'iteration' for step; it has n_rollouts, prompt_id",
        ),
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
    assert "Selection: not told, since 30 prompts are no two batches of 30 to choose among." in out
    status, out, _ = run(capsys, "forecast", "--rates", log / "log.parquet", "--budget", 80, "--batch", 10)
    assert status == 0 and "Selection (learnability, 3 candidates a prompt) at the same rollouts" in out
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
        "--candidates",
        1,
    )
    data = json.loads(out)
    assert data["selection"] is None
    assert status == 0 and data["lower"] <= 8 <= data["upper"] and len(data["reasons"]) >= 4


def test_small_groups_lower_the_default_bound(capsys, log, tmp_path):
    """2.67 rollouts a prompt: with L = 3 hardly a step would fit."""
    frame = pd.read_parquet(log / "log.parquet")
    frame["n_rollouts"] = np.where(frame.index % 3 == 0, 2, 3)
    frame["successes"] = np.minimum(frame["successes"], frame["n_rollouts"])
    frame.to_parquet(tmp_path / "log.parquet")
    command = ["replay", tmp_path / "log.parquet", "--rules", "uniform,vip:beta", "--out", tmp_path / "out"]
    status, out, _ = run(capsys, *command, "--resamples", 50, "--jobs", 1)
    assert status == 0 and "left out" not in out and "over 40 steps" in out
    assert json.loads((tmp_path / "out" / "report.json").read_text())["setting"]["min_group_size"] == 2


def test_a_missing_package_is_named_before_anything_is_computed(capsys, log, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else found(name))
    status, _, err = run(capsys, "replay", log / "log.parquet", "--out", tmp_path / "out")
    assert status == 2 and "needs matplotlib: pip install 'matplotlib" in err and not (tmp_path / "out").exists()


def test_csv_and_json_need_no_pandas_nor_pyarrow(log, tmp_path):
    code = (
        "import sys\n"
        "for name in ('pandas', 'pyarrow'):\n    sys.modules[name] = None\n"
        "from viprl.replay import read_log, ReadReport\n"
        "from viprl.replay.readers import read_rates\n"
        f"log, _ = read_log({str(log / 'log.csv')!r})\n"
        f"rates = read_rates({str(log / 'log.csv')!r}, ReadReport('rates'))\n"
        "print(len(log), rates.rollouts.sum())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout.split() == ["600", "4800"], done.stderr


def test_ids_are_text_and_empty_is_the_only_missing_one(tmp_path):
    ids = ["000", "1e0", "NA", "9007199254740993", "9007199254740992"]
    lines = [f"{step},{i},{k},4" for step in range(3) for k, i in enumerate(ids)]
    (tmp_path / "log.csv").write_text("step,prompt_id,successes,n_rollouts\n" + "\n".join([*lines, "3,,1,4"]) + "\n")
    (tmp_path / "prompts.csv").write_text("prompt_id,prompt\n" + "\n".join(f"{i},text {i}" for i in ids) + "\n")
    out = tmp_path / "out"
    request = ReplayRequest(log=str(tmp_path / "log.csv"), prompts=str(tmp_path / "prompts.csv"), on_error="skip")
    world, prompts, notes = build_world(request)
    assert world.prompt_ids == tuple(prompts.ids) == tuple(ids) and any("prompt_id is missing" in n for n in notes)
    assert not out.exists()
    pd.DataFrame(
        {"prompt_id": pd.array([2**53, 2**53 + 1, None], dtype="Int64"), "reward": [1.0, 0.0, 1.0], "step": 1}
    ).to_parquet(tmp_path / "big.parquet")
    log, _ = read_log(tmp_path / "big.parquet", on_error="skip")
    assert log.prompt_ids == (str(2**53), str(2**53 + 1))


@pytest.mark.parametrize("damage", ["gz", "cell", "latin", "step", "npy"])
def test_damaged_files_are_one_line(capsys, log, tmp_path, damage):
    text = (log / "log.csv").read_text()
    target, extra = tmp_path / "log.csv", []
    if damage == "gz":
        target = tmp_path / "log.csv.gz"
        target.write_bytes(gzip.compress(text.encode())[:-40])
    elif damage == "cell":
        target.write_text(text + f"1,{'x' * 200_000},9,4\n")
    elif damage == "latin":
        target.write_bytes(text.encode() + "1,é,1,4\n".encode("latin-1"))
    elif damage == "step":
        target.write_text(text + "1e30,q1,1,4\n")
    else:
        target.write_text(text)
        (tmp_path / "vectors.npy").write_bytes((log / "vectors.npy").read_bytes()[:100])
        extra = ["--prompts", log / "prompts.jsonl", "--embeddings", tmp_path / "vectors.npy"]
    status, _, err = run(capsys, "replay", target, *extra, "--out", tmp_path / "out")
    assert status == 2 and err.count("\n") == 1 and err.startswith("viprl replay: ")
    wanted = {"gz": "gzip", "cell": "[0, n_rollouts]", "latin": "UTF-8", "step": "whole number", "npy": ".npy"}
    assert wanted[damage] in err


def test_rollouts_with_names_of_their_own(capsys, tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        {"iteration": step, "prompt": f"p{q}", "response": "r", "score": float(rng.random() < 0.4)}
        for step in range(12) for q in range(6) for _ in range(8)
    ]  # fmt: skip
    path = tmp_path / "rollouts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, _, err = run(capsys, "replay", path)
    assert status == 2 and "say which is which: --columns step=iteration,reward=score" in err
    command = ["replay", path, "--columns", "step=iteration,reward=score", "--rules", "uniform,vip:beta", "--jobs", 1]
    status, out, _ = run(capsys, *command, "--resamples", 50, "--out", tmp_path / "out", "--estimator", "grpo")
    assert status == 0 and "kept 576" in out
    assert json.loads((tmp_path / "out" / "report.json").read_text())["setting"]["estimator"] == "grpo"


@pytest.mark.parametrize(
    ("header", "row", "words"),
    [
        ("step,prompt_id,reward_mean,n_rollouts", "0,a,.5,4", "--columns reward_var=NAME"),
        (
            "step,prompt_id,successes,reward_mean,n_rollouts,reward_var",
            "0,a,,.5,4,",
            "real rewards need reward_var too",
        ),
        ("step,prompt,accuracy_reward", "0,a,.5", "--columns reward=accuracy_reward"),
    ],
)
def test_the_column_that_is_missing_is_the_one_that_is_named(capsys, tmp_path, header, row, words):
    (tmp_path / "log.csv").write_text(f"{header}\n{row}\n")
    status, _, err = run(capsys, "replay", tmp_path / "log.csv", "--out", tmp_path / "out")
    assert status == 2 and words in err


def test_the_share_of_a_gap_within_the_noise_is_not_printed(capsys, tmp_path):
    """All prompts alike: the best allocation in hindsight is uniform's, up to chance."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"step": np.repeat(np.arange(30), 20), "prompt_id": [f"q{q}" for q in range(20)] * 30})
    frame.assign(successes=rng.binomial(8, 0.5, 600), n_rollouts=8).to_csv(tmp_path / "log.csv", index=False)
    command = ["replay", tmp_path / "log.csv", "--rules", "uniform,vip:beta,vip:last_rate", "--jobs", 1]
    status, _, _ = run(capsys, *command, "--resamples", 100, "--out", tmp_path / "out")
    data = json.loads((tmp_path / "out" / "report.json").read_text())
    assert status == 0 and data["best_allocation"]["ratio"]["later"] > 0.97
    assert {row["gap_closed"] for row in data["rules"]["later"] if row["rule"] != "uniform"} == {None}
