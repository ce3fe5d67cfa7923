"""``viprl allocate`` from files to a printed plan, and what it says of bad files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from viprl.cli import main
from viprl.embeddings import save_embeddings


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    prompts, history = tmp_path / "prompts.jsonl", tmp_path / "history.jsonl"
    prompts.write_text(
        "".join(json.dumps({"id": f"q{i}", "text": f"problem {i}", "rate": i / 6}) + "\n" for i in range(6))
    )
    rows = [
        {"step": step, "prompt_id": f"q{i}", "successes": k, "n_rollouts": 8}
        for step in range(4)
        for i, k in enumerate([0, 8, 4, 0, 8])  # q5 has no history
    ]
    history.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return prompts, history


def test_json_plan(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    prompts, history = files
    args = [
        "allocate",
        "--prompts",
        str(prompts),
        "--history",
        str(history),
        "--budget",
        "48",
        "--json",
        "--explain",
        "q2",
    ]
    assert main(args) == 0
    out = json.loads(capsys.readouterr().out)
    sizes = {row["prompt_id"]: row["group_size"] for row in out["prompts"]}
    assert sum(sizes.values()) == out["budget"] == 48
    assert sizes["q2"] == max(sizes.values()) > 8
    assert [row["prompt_id"] for row in out["prompts"] if row["cold"]] == ["q5"]
    assert out["explanations"]["q2"].startswith("q2: ")


def test_table_without_history(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["allocate", "--prompts", str(files[0]), "--budget", "48", "--top", "2"]) == 0
    out = capsys.readouterr().out
    assert "... and 4 more prompts" in out
    assert "48 rollouts over 6 prompts by vip" in out


def test_rates_are_a_start(files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = tmp_path / "rates.csv"
    rates.write_text("prompt_id,successes,n_rollouts\n" + "".join(f"q{i},{k},32\n" for i, k in enumerate([0, 16, 32])))
    common = ["allocate", "--prompts", str(files[0]), "--budget", "48", "--json"]
    assert main([*common, "--rates", str(rates)]) == 0
    printed = capsys.readouterr()
    sizes = {row["prompt_id"]: row["group_size"] for row in json.loads(printed.out)["prompts"]}
    assert sizes["q1"] > sizes["q0"] and sizes["q1"] > sizes["q2"] and "3 of 6 prompts start" in printed.err
    rates.write_text("prompt_id,success_rate\nq0,0.123456\nq1,0.7182818\n")
    assert main([*common, "--rates", str(rates)]) == 2
    assert "how many rollouts are behind" in capsys.readouterr().err


def test_foreign_prompts_are_counted(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    prompts, history = files
    with history.open("a") as file:
        file.write(json.dumps({"step": 4, "prompt_id": "gone", "successes": 1, "n_rollouts": 2}) + "\n")
    assert main(["allocate", "--prompts", str(prompts), "--history", str(history), "--budget", "48"]) == 0
    assert "1 prompts of the history are not in" in capsys.readouterr().err


def test_embeddings_and_side_information(files: tuple[Path, Path], tmp_path: Path) -> None:
    prompts, _ = files
    vectors = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    save_embeddings(tmp_path / "e.npz", [f"q{i}" for i in range(6)], vectors, model="m", fingerprint="f")
    common = ["allocate", "--prompts", str(prompts), "--budget", "48", "--embeddings", str(tmp_path / "e.npz")]
    assert main([*common, "--side-information", "rate"]) == 0


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--budget", "5"], "5"),
        (["--budget", "48", "--policy", "best"], "`policy` must be one of"),
        (["--budget", "48", "--side-information", "text"], "must hold numbers"),
        (["--budget", "48", "--side-information", "rte"], "must have the column 'rte'"),
        (["--budget", "48", "--history", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--budget", "48", "--text-column", "body"], "must have the column 'body'"),
        (["--budget", "48", "--columns", "prompt_id=id"], "--history, which is not given"),
    ],
)
def test_bad_input_is_one_clear_line(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], extra: list[str], message: str
) -> None:
    assert main(["allocate", "--prompts", str(files[0]), *extra]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and "Traceback" not in error


def test_malformed_history_stops_or_is_skipped(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    prompts, history = files
    with history.open("a") as file:
        file.write("{broken\n")
    common = ["allocate", "--prompts", str(prompts), "--history", str(history), "--budget", "48"]
    assert main(common) == 2
    assert "line 21" in capsys.readouterr().err
    assert main([*common, "--on-error", "skip"]) == 0
    assert "malformed rows: 1" in capsys.readouterr().err
