"""The AIME recipe's parts: preparation, reward, measures, and overrides that verl's configuration accepts."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

RECIPE = Path(__file__).resolve().parents[3] / "experiments" / "aime"


def load(name: str) -> ModuleType:
    """A module of the recipe's folder, which is no package."""
    spec = importlib.util.spec_from_file_location(f"aime_{name}", RECIPE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_preparation_of_local_files(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    smoke = RECIPE / "smoke"
    command = [sys.executable, RECIPE / "prepare.py", "--out", tmp_path, "--train", smoke / "train.jsonl"]
    tests = [f"--test={name}={smoke / name}.jsonl" for name in ("aime2024", "aime2025")]
    subprocess.run([*command, *tests], check=True, capture_output=True)
    train, test = (pandas.read_parquet(tmp_path / f"{split}.parquet").to_dict("records") for split in ("train", "test"))
    assert len(train) == 16 and [row["data_source"] for row in test] == ["aime2024"] * 2 + ["aime2025"] * 2
    ids = [row["extra_info"]["prompt_id"] for row in train]
    assert len(set(ids)) == 16 and ids[0] == "smoke-1-1"
    (message,) = train[0]["prompt"]
    assert message["role"] == "user"
    assert 'The last line of your answer must be "Answer: <answer>"' in message["content"]
    assert train[0]["reward_model"]["ground_truth"] == "2"


def test_repeated_problems_are_left_out_and_wrappers_taken_off() -> None:
    prepare = load("prepare")
    problem = {"problem": "How much is 1+1?", "answer": 2}
    assert len(prepare.to_rows([problem, {**problem, "id": "again"}], "s", "train")) == 1
    wrapped = f"{prepare.DAPO_HEAD} The last line should be Answer: $Answer.\n\nHow much is 1+1?\n\n{prepare.DAPO_TAIL}"
    assert prepare.unwrap(wrapped) == "How much is 1+1?"
    with pytest.raises(ValueError, match="needs a text and an answer"):
        prepare.to_rows([{"problem": " ", "answer": 1}], "s", "train")


@pytest.mark.parametrize(
    ("text", "gold", "score", "answer"),
    [
        ("steps\nAnswer: 34", "34", 1.0, "34"),
        ("steps\nAnswer: \\frac{1}{2}", "0.5", 1.0, "\\frac{1}{2}"),
        ("steps\nAnswer: 35", "34", -1.0, "35"),
        ("34", "34", -1.0, ""),
    ],
)
def test_reward(text: str, gold: str, score: float, answer: str) -> None:
    pytest.importorskip("math_verify")
    reward = load("reward")
    found = reward.compute_score("aime2024", text, gold)
    assert (found["score"], found["pred"], found["task"]) == (score, answer, "aime2024")
    assert found["acc"] == (score + 1) / 2
    reward._GRADER.close()


def dump(folder: Path, problems: dict[str, list[tuple[str, int]]], task: str = "aime2024") -> Path:
    (folder / "validation").mkdir(parents=True)
    rows = [
        {"uid": f"{uid}_{session}_0", "task": task, "pred": pred, "acc": acc}
        for uid, answers in problems.items()
        for session, (pred, acc) in enumerate(answers)
    ]
    path = folder / "validation" / "20.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "validation" / "3.jsonl").write_text("")
    return path


def test_measures_of_a_validation_dump(tmp_path: Path) -> None:
    results = load("results")
    run = tmp_path / "qwen2.5-math-1.5b_rloo_vip_8q_seed1"
    path = dump(run, {"a": [("7", 1), ("7", 1), ("8", 0), ("", 0)], "b": [("1", 0), ("2", 0), ("3", 1), ("", 0)]})
    assert results.last_dump(run) == path
    found = results.measures_of(path, 4)["aime2024"]
    assert found["pass"].tolist() == [1.0, 1.0]
    assert found["mean"].tolist() == [0.5, 0.25]
    assert found["maj"].tolist() == [1.0, pytest.approx(1 / 3)]  # a three-way tie
    text = results.table([run], 4)
    assert "| 100.00 " in text and "| 37.50 " in text and "30.55 / 9.68 / 15.65" in text
    with pytest.raises(ValueError, match="has 4 < 8"):
        results.measures_of(path, 8)


def test_published_table_is_whole() -> None:
    results = load("results")
    models = ("qwen2.5-math-1.5b", "qwen2.5-math-7b", "llama-3.2-3b-instruct")
    cells = itertools.product(models, ("dr_grpo", "rloo"), ("uniform", "vip"), ("8q", "16q"), ("aime2024", "aime2025"))
    rows = [results.published(f"{m}_{e}_{p}_{b}_seed1", task) for m, e, p, b, task in cells]
    assert len(rows) == 48 and all(rows)
    assert all(math.isfinite(float(row[name])) for row in rows for name in results.MEASURES)


def printed(*arguments: str) -> list[str]:
    done = subprocess.run(
        ["bash", RECIPE / "run.sh", "--print", *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()


def test_overrides_follow_the_arguments() -> None:
    lines = printed("qwen2.5-math-7b", "dr_grpo", "uniform", "16q", "3", "trainer.nnodes=4")
    assert "algorithm.adv_estimator=viprl_dr_grpo" in lines and "+viprl.policy=uniform" in lines
    assert "actor_rollout_ref.rollout.n=16" in lines and lines[-1] == "trainer.nnodes=4"
    wrong = subprocess.run(["bash", RECIPE / "run.sh", "gpt", "rloo", "vip", "8q"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "MODEL must be one of" in wrong.stderr


@pytest.mark.verl
@pytest.mark.parametrize("model", ["qwen2.5-math-1.5b", "llama-3.2-3b-instruct"])
@pytest.mark.parametrize(("budget", "rollouts"), [("8q", 4096), ("16q", 8192)])
def test_verl_accepts_the_overrides(model: str, budget: str, rollouts: int) -> None:
    pytest.importorskip("verl.protocol")
    from hydra import compose, initialize_config_module

    from viprl.integrations.verl.checks import check_config

    lines: list[Any] = [line for line in printed(model, "rloo", "vip", budget) if not line.startswith("hydra.")]
    with initialize_config_module(config_module="verl.trainer.config", version_base=None):
        settings = check_config(compose("ppo_trainer", overrides=lines))
    assert settings.budget.rollouts == rollouts and settings.equal_weights
    assert (settings.budget.min_group_size, settings.budget.max_group_size) == (4, 32)
