"""The recipes under experiments/search run from end to end on a CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl")
pytest.importorskip("bm25s")
RECIPES = Path(__file__).resolve().parents[3] / "experiments" / "search"


def run(script, *arguments):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(RECIPES / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_proof(tmp_path):
    run("proof.py", "--smoke", "--output", tmp_path, "--policies", "vip")
    results = json.loads((tmp_path / "results.json").read_text())
    assert [row["step"] for row in results["runs"]["vip"]["curve"]] == [0, 2]
    assert "vip: two-hop success" in (tmp_path / "report.md").read_text()


@pytest.mark.slow
def test_table2(tmp_path):
    printed = run("table2.py", "--smoke", "--output", tmp_path, "--estimators", "rloo", "--policies", "vip")
    assert "| rloo | vip |" in printed and "[17.6 / .264 / .294]" in printed
    (row,) = json.loads((tmp_path / "results.json").read_text())
    assert row["steps"] == 2 and {"em", "answer_f1", "retrieval_f1@2"} <= set(row["musique"])
    assert (tmp_path / "rloo-vip" / "bamboogle" / "transcripts.html").exists()


@pytest.mark.slow
def test_load_test(tmp_path):
    corpus = tmp_path / "questions.jsonl"
    corpus.write_text('{"id": "1", "question": "who fell?", "answer": "x", "text": "who fell down"}\n')
    printed = run("load_test.py", corpus, "--seconds", "4", "--clients", "16")
    result = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])
    assert result["errors"] == 0 and result["requests"] > 50 and result["exit_status_on_sigterm"] == 0
