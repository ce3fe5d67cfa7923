"""Mathematics: reading files, splits, rewards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("datasets")
pytest.importorskip("math_verify")

from viprl.errors import ConfigurationError
from viprl.tasks import MathTask


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "problems.jsonl"
    rows = [{"id": f"p{i}", "problem": f"What is {i} + {i}?", "answer": 2 * i} for i in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_prompts_ids_and_split(problems):
    task = MathTask(train=str(problems), prompt_id="id", test_size=5)
    train, test = task.train_dataset(), task.test_dataset()
    assert len(train) == 15 and len(test) == 5 and not set(train["prompt_id"]) & set(test["prompt_id"])
    assert test["prompt_id"] == MathTask(train=str(problems), prompt_id="id", test_size=5).test_dataset()["prompt_id"]
    first = train[0]["prompt"][0]
    assert first["role"] == "user" and first["content"].endswith('"Answer: <answer>".')
    assert task.texts(train)[0] == first["content"].split("\n\n")[0]


def test_ids_are_content_hashes_without_a_column(problems):
    ids = MathTask(train=str(problems), test_size=5).train_dataset()["prompt_id"]
    assert all(len(i) == 16 for i in ids)


def test_reward_end_to_end(problems):
    task = MathTask(train=str(problems), test_size=5, chat=False)
    row = task.train_dataset()[0]
    completions = [f"Thus\nAnswer: {row['answer']}", f"\\boxed{{{row['answer']}.0}}", "Answer: 1234567", "hm"]
    assert task.reward([row["prompt"]] * 4, completions, answer=[row["answer"]] * 4) == [1.0, 1.0, 0.0, 0.0]
    task.grader.close()


def test_worked_solutions_keep_only_their_answer(tmp_path: Path):
    path = tmp_path / "gsm.jsonl"
    rows = [{"question": f"Q{i}?", "answer": f"Long way.\n#### {i}"} for i in range(4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = MathTask(train=str(path), problem="question", test_size=1)
    assert all(answer.isdigit() for answer in task.train_dataset()["answer"])


def test_training_problems_never_occur_in_the_test_set(problems, tmp_path: Path):
    test = tmp_path / "test.jsonl"
    rows = [{"problem": "What is 3 + 3?", "answer": "6"}, {"problem": "What is 50 + 50?", "answer": "100"}]
    test.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = MathTask(train=str(problems), test=str(test))
    assert task.test_dataset()["answer"] == ["100"]


def test_errors_state_the_rule(problems, tmp_path: Path):
    with pytest.raises(ConfigurationError, match="`problem` must be a column of .*id, problem, answer.*'question'"):
        MathTask(train=str(problems), problem="question")
    with pytest.raises(ConfigurationError, match="a data file must exist"):
        MathTask(train=str(tmp_path / "none.jsonl"))
    with pytest.raises(ConfigurationError, match="test_size < problems must hold"):
        MathTask(train=str(problems), test_size=20)
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"problem": "2?", "answer": null}\n{"problem": "3?", "answer": "3"}\n')
    with pytest.raises(ConfigurationError, match="needs a text and an answer"):
        MathTask(train=str(empty))


@pytest.mark.data
def test_recorded_math_answers_equal_themselves(viprl_data):
    task = MathTask(train=str(viprl_data / "math500.jsonl"), prompt_id="id", test_size=50)
    answers = task.train_dataset()["answer"]
    completions = [[{"role": "assistant", "content": f"Thus \\boxed{{{answer}}}."}] for answer in answers]
    assert set(task.reward([None] * len(answers), completions, answer=answers)) == {1.0}
