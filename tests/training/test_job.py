"""`viprl train` from end to end on a model of a few thousand parameters."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("trl")
pytest.importorskip("matplotlib")

from viprl.cli import main
from viprl.errors import ConfigurationError, InvalidInputError
from viprl.history import HISTORY_COLUMNS
from viprl.reports.progress import Progress
from viprl.training import load_config, run_job

pytestmark = pytest.mark.slow


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_job_with_two_policies_and_seeds_writes_its_report(write_config, capsys, tmp_path: Path):
    import pandas as pd

    path = write_config(compare=["uniform"], seeds=[0, 1])
    assert main(["train", str(path), "trainer.learning_rate=2e-3"]) == 0
    report = tmp_path / "job" / "report"
    names = {p.name for p in report.iterdir()}
    pictures = {"learning_curve.png", "rollouts.png", "reliability.png", "variance.png"}
    assert names == pictures | {"report.html", "metrics.jsonl", "history.parquet", "summary.json", "config.yaml"}

    runs = json.loads((report / "summary.json").read_text())["runs"]
    assert [(r["policy"], r["seed"]) for r in runs] == [("vip", 0), ("vip", 1), ("uniform", 0), ("uniform", 1)]
    assert all(r["rollouts"] == 48 and r["finished"] for r in runs)
    history = pd.read_parquet(report / "history.parquet")
    assert set(history.columns) == {*HISTORY_COLUMNS, "policy", "seed"}
    assert (history.groupby(["policy", "seed", "step"])["group_size"].sum() == 16).all()
    assert (history.loc[history["policy"] == "uniform", "group_size"] == 4).all()

    rows = metrics(tmp_path / "job" / "vip-seed0")
    assert [r["step"] for r in rows if "heldout/sampled" in r] == [0, 2, 3]
    assert [r["step"] for r in rows if "reward" in r] == [1, 2, 3]
    said = capsys.readouterr().out
    assert "held-out success" in said and "report.html" in said.splitlines()[-2]

    page = (report / "report.html").read_text()
    outside = r"(?:src|href|srcset)=\"(?!data:)|url\((?!#)|https?://(?!www\.w3\.org)"
    assert not re.search(outside, re.sub(r"base64,[^\"]*", "base64,", page))
    assert page.count("<svg") == 7


def test_the_main_run_and_its_comparison_see_the_same_prompts(write_config, tmp_path: Path):
    import pandas as pd

    run_job(load_config(write_config(compare=["uniform"])), progress=Progress())
    history = pd.read_parquet(tmp_path / "job" / "report" / "history.parquet")
    seen = {p: g.groupby("step")["prompt_id"].apply(sorted).tolist() for p, g in history.groupby("policy")}
    assert seen["vip"] == seen["uniform"]


def test_ctrl_c_saves_and_resume_equals_the_uninterrupted_run(write_config, tmp_path: Path):
    import torch
    from safetensors.torch import load_file

    path = write_config(steps=12, eval_every=4, trainer={"learning_rate": 1e-3, "save_steps": 100})
    command = [sys.executable, "-m", "viprl.cli", "train", str(path)]
    whole, cut = f"output={tmp_path / 'whole'}", f"output={tmp_path / 'cut'}"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, cut, "steps=12"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    assert process.stdout is not None
    for line in process.stdout:
        if re.search(r"[3-9]/12", line):
            process.send_signal(signal.SIGINT)
            break
    said = process.stdout.read()
    assert process.wait(timeout=300) == 130, said
    assert "saved in" in said and "continue with resume=true" in said
    stopped = int(re.search(r"stopped at step (\d+)", said)[1])
    assert 3 <= stopped < 12

    assert main(["train", str(path), cut, "resume=true"]) == 0
    assert main(["train", str(path), whole]) == 0
    for name in ("whole", "cut"):
        rows = metrics(tmp_path / name / "vip-seed0")
        assert [r["step"] for r in rows if "reward" in r] == list(range(1, 13))
        assert [r["step"] for r in rows if "heldout/sampled" in r] == [0, 4, 8, 12]
    pair = [load_file(tmp_path / n / "vip-seed0" / "model" / "model.safetensors") for n in ("whole", "cut")]
    assert all(torch.equal(pair[0][key], pair[1][key]) for key in pair[0])
    assert main(["train", str(path), cut, "resume=true"]) == 0  # nothing left to do: the report is written again


def test_the_saved_model_loads_with_transformers(write_config, tmp_path: Path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run_job(load_config(write_config(estimator="dr_grpo", eval_every=0)), progress=Progress())
    folder = tmp_path / "job" / "vip-seed0" / "model"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    again = write_config(model=str(folder), output=str(tmp_path / "again"), estimator="grpo", steps=1)
    run_job(load_config(again), progress=Progress())
    assert model.config.vocab_size == len(tokenizer)


@pytest.mark.parametrize("policy", ["relaxed", "inverse_accuracy", "inverse_variance", "knapsack_rl"])
def test_every_policy_runs(write_config, policy, tmp_path: Path):
    result = run_job(load_config(write_config(policy=policy, steps=2, eval_every=0)), progress=Progress())
    assert result.finished and result.report == tmp_path / "job" / "report" / "report.html"


def test_a_reward_file_and_micro_batches(write_config, tmp_path: Path):
    (tmp_path / "mine.py").write_text(
        "def even(prompts, completions, **columns):\n    return [float(len(c) % 2 == 0) for c in completions]\n"
    )
    trainer = {"learning_rate": 1e-3, "per_device_train_batch_size": 4}
    path = write_config(reward=f"{tmp_path / 'mine.py'}:even", trainer=trainer, steps=2)
    run_job(load_config(path), progress=Progress())
    rows = [r for r in metrics(tmp_path / "job" / "vip-seed0") if "reward" in r]
    assert "rewards/even/mean" in rows[0] and [r["step"] for r in rows] == [1, 2]


def test_a_job_that_failed_before_its_first_step_may_be_corrected(write_config, tmp_path: Path):
    (tmp_path / "dense.py").write_text(
        "def score(completions, **columns):\n    return [0.3 + i for i in range(len(completions))]\n"
    )
    path = write_config(steps=1, eval_every=0)
    with pytest.raises(InvalidInputError, match="success_reward"):
        run_job(load_config(path, [f"reward={tmp_path / 'dense.py'}:score"]))
    assert run_job(load_config(path)).finished
    with pytest.raises(ConfigurationError, match="holds a job"):
        run_job(load_config(path))


def test_the_page_in_a_browser(write_config, tmp_path: Path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser (apt-get install chromium)")
    result = run_job(load_config(write_config(compare=["uniform"])), progress=Progress())
    shot = tmp_path / "page.png"
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --hide-scrollbars --window-size=1100,2600"
    ).split()
    begun = time.monotonic()
    command = [browser, *flags, f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={shot}"]
    subprocess.run([*command, f"file://{result.report}"], check=True, capture_output=True, timeout=240)
    from PIL import Image

    pixels = Image.open(shot).convert("RGB")
    colours = len(set(pixels.resize((220, 520)).getdata()))
    assert colours > 200, f"an empty page after {time.monotonic() - begun:.0f} s: {colours} colours"
    margin = set(pixels.crop((1080, 0, 1100, 2600)).getdata())
    assert len(margin) == 1, "the page is wider than its window"


def test_two_processes_share_the_budget_and_the_evaluation(write_config, tmp_path: Path):
    import pandas as pd

    path = write_config(steps=2)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--module"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, "viprl.cli", "train", str(path)], capture_output=True, text=True, env=environment, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("look at ") == 1
    run = tmp_path / "job" / "vip-seed0"
    assert [r["step"] for r in metrics(run) if "reward" in r] == [1, 2]
    summary = json.loads((run / "summary.json").read_text())
    assert len(set(summary["heldout_prompt_ids"])) == len(summary["heldout_sampled"]) == 8
    history = pd.read_parquet(tmp_path / "job" / "report" / "history.parquet")
    assert history.groupby("step")["group_size"].sum().tolist() == [16, 16]
