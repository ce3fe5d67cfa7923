"""``viprl evaluate`` on files and on a model."""

from __future__ import annotations

import gzip
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


def test_columns_that_are_none_of_those_known_are_listed(capsys, tmp_path):
    path = tmp_path / "c.csv"
    path.write_text("id,completion,accuracy_reward,format_reward\n1,x,1,0\n")
    assert main(["evaluate", str(path)]) == 2
    assert "--columns correct=NAME or gold=NAME)? accuracy_reward, format_reward" in capsys.readouterr().err


def test_table_and_errors(capsys, file):
    assert main(["evaluate", str(file)]) == 0
    assert "2 problems, 6 completions; 95% intervals over problems" in capsys.readouterr().out
    for arguments, message in (
        ([], "give either a file of completions or --model"),
        ([str(file), "--k", "4"], "k <= n must hold"),
        (["absent.jsonl"], "absent.jsonl"),
        ([str(file), "--k", "a"], "--k must be whole numbers >= 1, comma-separated, but got 'a'"),
        ([str(file), "--k", "0"], "--k must be whole numbers >= 1"),
        ([str(file), "--k=-1"], "--k must be whole numbers >= 1"),
        ([str(file), "--k", "1,,2"], "--k must be whole numbers >= 1"),
        ([str(file), "--k", "2.5"], "--k must be whole numbers >= 1"),
        ([str(file), "--k", ""], "--k must be whole numbers >= 1"),
        ([str(file), "--retrieval-k", "0"], "--retrieval-k >= 1 must hold, but got 0"),
        ([str(file), "--seed=-1"], "--seed >= 0 must hold"),
        ([str(file), "--columns", "completions=completion"], "--columns must map"),
        ([str(file), "--columns", "gold=goal"], "gold=goal is none"),
        (["--model", "tiny", "--task", "arithmetic", "--samples", "0"], "--samples >= 1 must hold"),
        (["--model", "tiny", "--task", "arithmetic", "--save", "no/such/folder.jsonl"], "--save needs a folder"),
        (["--model", "tiny"], "--model needs --task"),
        (["--model", "tiny", "--task", "arithmetic", "--set", "x"], "--set must be NAME=VALUE"),
    ):
        assert main(["evaluate", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_boxed_completions_are_graded_as_mathematics_by_default(capsys, tmp_path):
    pytest.importorskip("math_verify")
    path = tmp_path / "boxed.jsonl"
    rows = [
        {"id": p, "completion": f"so \\boxed{{{p}{'' if s else '.0'}}}", "gold": str(p)}
        for p in range(3)
        for s in range(2)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["evaluate", str(path)]) == 0
    out = capsys.readouterr().out
    assert "as mathematics (--grader math, chosen from the data)" in out
    assert ["mean@2", "1.0000"] in [line.split()[:2] for line in out.splitlines()]
    assert main(["evaluate", str(path), "--grader", "exact"]) == 0
    assert "note: 0 of 6 completions match their gold answer; --grader math" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.jsonl.gz", gzip.compress(b'{"id": 1, "score": 1}\n' * 99, mtime=0)[:-9], "must be a whole gzip file"),
        ("c.jsonl", b'{"id": 1, "score": 1}\n{"id": "\xe9", "score": 1}\n', "c.jsonl, line 2: must be UTF-8"),
        ("c.csv", b"id,score\n\xe9,1\n", "c.csv, line 2: must be UTF-8"),
        ("c.parquet", b"PAR1 no PAR1", "must be a whole parquet file"),
    ],
)
def test_damaged_files_are_one_line(capsys, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    assert main(["evaluate", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert message in error and name in error and error.count("\n") == 1


def test_byte_order_marks_and_cells_of_any_size(capsys, tmp_path):
    (tmp_path / "c.csv").write_bytes(b"\xef\xbb\xbfid,completion,score\n007," + b"x" * 200_000 + b",1\n")
    assert measures(capsys, tmp_path / "c.csv")["mean@1"] == 1.0
    (tmp_path / "c.jsonl").write_bytes(b'\xef\xbb\xbf{"id": 1, "score": 1}\n')
    assert measures(capsys, tmp_path / "c.jsonl")["mean@1"] == 1.0


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
