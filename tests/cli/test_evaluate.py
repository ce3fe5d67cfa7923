"""``viprl evaluate`` on files and on a model."""

from __future__ import annotations

import json

import pytest

from viprl.cli import main

ROWS = [
    {"id": "a", "completion": "so\nAnswer: 7", "gold": "7"},
    {"id": "a", "completion": "so\nAnswer: 7.0", "gold": "7"},
    {"id": "a", "completion": "so \\boxed{8}", "gold": "7"},
    {"id": "b", "completion": "Answer: \\frac{1}{2}", "gold": "0.5"},
    {"id": "b", "completion": "no idea", "gold": "0.5"},
    {"id": "b", "completion": "Answer: 3", "gold": "0.5"},
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "completions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def measures(capsys, *arguments):
    assert main(["evaluate", *map(str, arguments), "--json"]) == 0
    return {name: value["estimate"] for name, value in json.loads(capsys.readouterr().out)["measures"].items()}


def test_text_comparison_of_final_answers(capsys, file):
    found = measures(capsys, file, "--grader", "final", "--k", "1,3")
    assert found["pass@1"] == pytest.approx(1 / 6) and found["pass@3"] == 0.5


def test_mathematical_comparison(capsys, file):
    pytest.importorskip("math_verify")
    found = measures(capsys, file, "--grader", "math", "--k", "3")
    assert found["mean@3"] == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert found["maj@3"] == pytest.approx((1 + 0.5) / 2)


def test_table_and_errors(capsys, file):
    assert main(["evaluate", str(file)]) == 0
    assert "2 problems, 6 completions; 95% intervals over problems" in capsys.readouterr().out
    for arguments, message in (
        ([], "give either a file of completions or --model"),
        ([str(file), "--k", "4"], "k <= n must hold"),
        (["absent.jsonl"], "absent.jsonl"),
        (["--model", "tiny"], "--model needs --task"),
        (["--model", "tiny", "--task", "arithmetic", "--set", "x"], "--set must be NAME=VALUE"),
    ):
        assert main(["evaluate", *arguments]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_on_a_task(capsys, tmp_path):
    pytest.importorskip("trl")
    saved = tmp_path / "said.jsonl"
    arguments = ["evaluate", "--model", "tiny", "--task", "arithmetic", "--set", "test_size=24", "--samples", "4"]
    assert main([*arguments, "--save", str(saved)]) == 0
    out = capsys.readouterr().out
    assert "24 problems, 96 completions" in out and "greedy success rate" in out
    rows = [json.loads(line) for line in saved.read_text().splitlines()]
    assert len(rows) == 96 and len({row["prompt_id"] for row in rows}) == 24
    again = measures(capsys, saved)
    assert f"{again['mean@4']:.4f}" in out
