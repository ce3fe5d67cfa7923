"""The commands: ``viprl serve-search`` as a process, ``viprl evaluate --task ...`` on a saved model."""

import json
import signal
import subprocess
import sys
import urllib.request

import pytest

pytest.importorskip("bm25s")

from viprl.cli import main
from viprl.tasks.search.http_client import HttpRetriever
from viprl.tasks.search.world import FactWorld

WORLD = FactWorld(people=12)


def write_questions(folder, *, paragraphs):
    file = folder / "questions.jsonl"
    rows = []
    for q in WORLD.questions(1)[:3]:
        row = {"id": q.id, "question": q.question, "answer": q.answers[0]}
        if paragraphs:
            row["paragraphs"] = [
                {"title": p.title, "paragraph_text": p.text, "is_supporting": p.id in q.supporting}
                for p in WORLD.passages[:20]
            ]
        rows.append(json.dumps(row))
    file.write_text("\n".join(rows))
    return file


def test_serve_search_from_start_to_sigterm(tmp_path):
    file = tmp_path / "corpus.jsonl"
    file.write_text("\n".join(json.dumps(p.to_document()) for p in WORLD.passages))
    command = [sys.executable, "-m", "viprl.cli", "serve-search", str(file), "--port", "0"]
    command += ["--save-index", str(tmp_path / "index")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert "serving 48 passages (bm25) at http://127.0.0.1:" in line
        url = line.split(" at ")[1].split("/retrieve")[0]
        person = WORLD.persons[0]
        assert HttpRetriever(url).retrieve([f"mother of {person}"], 1)[0][0].passage.title == person
        with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
            assert json.loads(response.read())["requests"] == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        assert "stopped after 1 requests" in process.stdout.read()
    finally:
        process.kill()
    assert (tmp_path / "index" / "passages.json").exists()


def test_serve_search_refuses_what_is_not_a_corpus(tmp_path, capsys):
    assert main(["serve-search", str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "c.txt").write_text("words")
    assert main(["serve-search", str(tmp_path), "--retriever", "elastic"]) == 2
    assert "'bm25'" in capsys.readouterr().err


def test_evaluate_a_saved_model(tmp_path, capsys):
    pytest.importorskip("transformers")
    from viprl.tasks.search.tiny import build_model, build_tokenizer

    tokenizer = build_tokenizer(WORLD)
    tokenizer.save_pretrained(tmp_path / "model")
    build_model(tokenizer, layers=1, hidden=32).save_pretrained(tmp_path / "model")
    file = write_questions(tmp_path, paragraphs=True)
    command = ["evaluate", "--task", "musique", "--model", str(tmp_path / "model"), "--data", str(file)]
    command += ["--max-turn-tokens", "12", "--max-turns", "2", "--no-system-prompt", "--output", str(tmp_path / "out")]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "musique: 3 questions, 3 rollouts" in printed
    assert "answer_f1" in printed and "retrieval_precision@5" in printed and "[0.000" in printed
    assert "Who is the" in (tmp_path / "out" / "transcripts.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "bamboogle"], "needs --model"),
        (["--task", "search", "--model", "x"], "needs --data"),
        (["--task", "bamboogle", "--model", "x", "--data", "{file}"], "carry no paragraphs"),
        (["--task", "bamboogle", "--model", "/nowhere", "--data", "{file}", "--corpus", "{file}"], "hold text"),
    ],
)
def test_evaluate_says_what_is_missing(tmp_path, capsys, arguments, message):
    file = write_questions(tmp_path, paragraphs=False)
    assert main(["evaluate", *(a.replace("{file}", str(file)) for a in arguments)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "message"), [("/nowhere", "can be loaded, but got '/nowhere'"), ("tiny", "a task must bring one")]
)
def test_evaluate_says_which_model_cannot_be_loaded(tmp_path, capsys, model, message):
    pytest.importorskip("transformers")
    file = write_questions(tmp_path, paragraphs=True)
    assert main(["evaluate", "--task", "musique", "--model", model, "--data", str(file)]) == 2
    assert message in capsys.readouterr().err
