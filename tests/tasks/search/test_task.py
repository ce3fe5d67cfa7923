"""Search as a task of ``viprl train``."""

import functools
import json

import pytest

pytest.importorskip("trl")
pytest.importorskip("bm25s")

from viprl.errors import ConfigurationError, InvalidInputError
from viprl.tasks import make_task
from viprl.tasks.search import tiny


def test_settings():
    task = make_task("search", train_size=20, test_size=10)
    train, test = task.train_dataset(), task.test_dataset()
    assert (len(train), len(test)) == (20, 10) and not set(train["prompt_id"]) & set(test["prompt_id"])
    assert train[0]["answers"] == [train[0]["answer"]]
    with pytest.raises(ConfigurationError, match="`train` and `test`"):
        make_task("search", questions="musique")
    with pytest.raises(InvalidInputError, match="train_size"):
        make_task("search", train_size=0)
    with pytest.raises(InvalidInputError, match="'em' or 'f1'"):
        make_task("search", reward="bleu")


def test_files_of_your_own(tmp_path):
    for name in ("train", "test"):
        rows = [{"id": f"{name}{i}", "question": f"q{i}?", "answer": "a"} for i in range(3)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "corpus.txt").write_text("some words")
    task = make_task(
        "search",
        questions="mine",
        train=str(tmp_path / "train.jsonl"),
        test=str(tmp_path / "test.jsonl"),
        corpus=str(tmp_path / "corpus.txt"),
        train_size=2,
    )
    row = task.train_dataset()[0]
    assert [m["role"] for m in row["prompt"]] == ["system", "user"] and row["prompt_id"] == "train0"
    assert len(task.train_dataset()) == 2 and len(task.test_dataset()) == 3


@pytest.mark.slow
def test_a_job_from_a_configuration(tmp_path, monkeypatch):
    from viprl.training import TrainConfig, run_job

    short = functools.partial(
        tiny.WarmStart, one_hop_steps=4, clean_steps=2, erring_steps=2, worlds=1, questions=8, batch_size=8
    )
    monkeypatch.setattr(tiny, "WarmStart", short)
    settings = {
        "task": {"name": "search", "top_k": 2, "max_turns": 3, "train_size": 16, "test_size": 4},
        "output": str(tmp_path / "out"),
        "cache": str(tmp_path / "cache"),
        "budget": 16,
        "group_size": 4,
        "steps": 2,
        "eval_samples": 1,
        "trainer": {"max_tool_calling_iterations": 2, "max_completion_length": 120, "save_strategy": "no"},
    }
    with pytest.raises(ConfigurationError, match="algorithm=grpo"):
        run_job(TrainConfig(**(settings | {"trainer": {"save_strategy": "no"}})))
    result = run_job(TrainConfig(**settings, algorithm="grpo", overwrite=True))
    assert result.finished
    rows = [json.loads(line) for line in (tmp_path / "out" / "vip-seed0" / "metrics.jsonl").read_text().splitlines()]
    assert any("search/calls" in row for row in rows) and any("heldout/sampled" in row for row in rows)
