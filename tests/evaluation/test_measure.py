"""From files of completions to measures, by hand-made cases."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from viprl.errors import InvalidInputError
from viprl.evaluation.completions import gather, read_completions
from viprl.evaluation.measure import measure
from viprl.evaluation.recording import RecordedTask


def problems(*rows, **columns):
    return gather(enumerate(rows, start=1), columns=columns or None)


def test_pass_mean_and_majority():
    rows = [{"id": "a", "completion": c, "gold": "7"} for c in ("7", "7", "8", "9")]
    rows += [{"id": "b", "completion": c, "gold": ["x", "y"]} for c in ("y", "z", "z", "z")]
    result = measure(problems(*rows), ks=(1, 4))
    values = {name: v.estimate for name, v in result.measures.items()}
    assert values["pass@1"] == pytest.approx((2 / 4 + 1 / 4) / 2) and values["pass@4"] == 1.0
    assert values["mean@4"] == pytest.approx((2 / 4 + 1 / 4) / 2)
    assert values["maj@4"] == pytest.approx((1 + 0) / 2)
    assert values["em"] == pytest.approx(3 / 8)
    assert (result.problems, result.completions) == (2, 8)
    assert result.lines()[0].startswith("2 problems, 8 completions")


def test_spellings_of_a_right_answer_vote_together():
    rows = [{"id": "a", "completion": c, "gold": "1/2"} for c in ("1/2", "0.5", "3", "3")]

    def grade(answers, golds):
        return [float(a in ("1/2", "0.5")) for a in answers]

    result = measure(problems(*rows), ks=(4,), grade=grade)
    assert result.measures["maj@4"].estimate == 0.5  # two right against two 3s: a tie
    assert measure(problems(*rows), ks=(4,)).measures["maj@4"].estimate == 0.0


def test_correctness_in_the_file_needs_no_gold():
    rows = [{"id": i, "completion": f"{i}{j}", "correct": j < i} for i in range(4) for j in range(3)]
    result = measure(problems(*rows))
    assert set(result.measures) == {"pass@1", "mean@1", "pass@3", "mean@3", "maj@3"}
    assert result.measures["pass@1"].estimate == pytest.approx(0.5)
    partly = [{"id": 1, "completion": "x", "score": 0.5}, {"id": 1, "completion": "y", "score": 1}]
    result = measure(problems(*partly))
    assert result.measures["mean@2"].estimate == 0.75 and result.measures["pass@2"].estimate == 1.0
    assert any("partly correct" in note for note in result.notes)
    assert measure(problems({"id": 1, "completion": "x", "score": -1})).measures["pass@1"].estimate == 0.0


def test_answers_may_be_extracted_and_absent():
    rows = [{"id": "a", "completion": c, "gold": "Paris"} for c in ("so Answer: Paris", "no idea", None)]
    result = measure(problems(*rows), ks=(3,), extract=lambda t: t.split(": ")[1] if ": " in t else None)
    assert result.measures["maj@3"].estimate == 1.0 and result.measures["em"].estimate == pytest.approx(1 / 3)
    assert result.measures["answer_f1"].estimate == pytest.approx(1 / 3)


def test_retrieval_where_passages_are_given():
    row = {"id": "a", "completion": "x", "gold": "x", "retrieved": ["p1", "p2"], "supporting": ["p2", "p9"]}
    result = measure(problems(row), retrieval_k=2)
    assert result.measures["retrieval_precision@2"].estimate == 0.5
    assert result.measures["retrieval_recall@2"].estimate == 0.5


def test_what_cannot_be_judged_is_left_out_and_said():
    rows = [{"id": "a", "completion": "7", "gold": "7"}, {"id": "b", "completion": "7"}]
    result = measure(problems(*rows))
    assert result.measures["pass@1"].estimate == 1.0 and any(
        "1 problems could not be judged" in n for n in result.notes
    )
    unreadable = measure(problems(*rows[:1], {"id": "c", "completion": "1", "gold": "?"}), grade=lambda a, g: [
        None if gold == "?" else 1.0 for gold in g
    ])  # fmt: skip
    assert any("could not be judged" in note for note in unreadable.notes)
    with pytest.raises(InvalidInputError, match="need a gold answer"):
        measure(problems({"id": "b", "completion": "7"}))


def test_k_beyond_the_completions_is_an_error():
    rows = [{"id": i, "completion": "7", "gold": "7"} for i in (1, 1, 2)]
    with pytest.raises(InvalidInputError, match=r"k <= n must hold for every problem, but got \(k=2, n=1\)"):
        measure(problems(*rows), ks=(2,))


def test_files_gold_files_and_verl_dumps(tmp_path):
    file, gold = tmp_path / "c.jsonl", tmp_path / "gold.jsonl"
    rows = [{"problem_id": "b1", "response": "Titan IIIE"}, {"problem_id": "b2", "response": "1999"}]
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    gold.write_text('{"id": "b1", "answers": ["titan iiie"]}\n{"id": "b2", "answers": [1999, "x"]}\n')
    assert measure(read_completions(file, gold=gold)).measures["em"].estimate == 1.0
    pd.DataFrame(rows).to_parquet(tmp_path / "c.parquet")
    assert len(read_completions(tmp_path / "c.parquet")) == 2
    with pytest.raises(InvalidInputError, match="'b1' has none"):
        gold.write_text('{"id": "b2", "answers": "1999"}\n')
        read_completions(file, gold=gold)
    dump = tmp_path / "5.jsonl"
    verl = {"input": "user\n2+2?", "output": "4", "gts": "4", "score": 1.0, "step": 5, "uid": "u_0_0"}
    dump.write_text(json.dumps(verl) + "\n" + json.dumps({**verl, "score": 0.0, "output": "5"}) + "\n")
    result = measure(read_completions(dump))
    assert result.problems == 1 and result.measures["mean@2"].estimate == 0.5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 must be JSON"),
        ("[]", "must be a JSON object"),
        ('{"completion": "x"}', "row 1 must name its problem"),
        ('{"id": 1, "completion": 7}', "a completion must be text"),
        ('{"id": 1, "completion": "x", "correct": 3}', r"correctness must be in \[0, 1\]"),
        ("", "at least one completion"),
    ],
)
def test_bad_files(tmp_path, line, message):
    (tmp_path / "c.jsonl").write_text(line + "\n")
    with pytest.raises(InvalidInputError, match=message):
        read_completions(tmp_path / "c.jsonl")


def test_a_recorded_task_keeps_what_was_said():
    class Task:
        success_threshold, name = 1.0, "toy"

        def reward(self, prompts, completions, **columns):
            return [None if c == "?" else float(c == a) for c, a in zip(completions, columns["answer"], strict=True)]

    task = RecordedTask(Task())
    rewards = task.reward(["p", "p", "q"], ["7", "8", "?"], prompt_id=["p", "p", "q"], answer=["7", "7", "1"])
    assert rewards == [1.0, 0.0, None] and task.name == "toy"
    assert [row["correct"] for row in task.rows] == [1.0, 0.0, None]
    assert measure(gather(enumerate(task.rows[:2]))).measures["mean@2"].estimate == 0.5
