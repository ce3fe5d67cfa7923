"""From files of completions to measures, by hand-made cases."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from viprl.errors import ConfigurationError, InvalidInputError
from viprl.evaluation.completions import gather, read_completions
from viprl.evaluation.graders import Grader, choose_grader
from viprl.evaluation.measure import measure
from viprl.evaluation.recording import RecordedTask


def problems(*rows, **columns):
    return gather(enumerate(rows, start=1), columns=columns or None)


def test_pass_mean_and_majority():
    rows = [{"id": "a", "completion": c, "gold": "7"} for c in ("7", "7", "8", "9")]
    rows += [{"id": "b", "completion": c, "gold": ["x", "y"]} for c in ("y", "z", "z", "z")]
    result = measure(problems(*rows), ks=(1, 4, 4))
    values = {name: v.estimate for name, v in result.measures.items()}
    assert values["pass@1"] == pytest.approx((2 / 4 + 1 / 4) / 2) and values["pass@4"] == 1.0
    assert values["mean@4"] == pytest.approx((2 / 4 + 1 / 4) / 2)
    assert values["maj@4"] == pytest.approx((1 + 0) / 2)
    assert values["em"] == pytest.approx(3 / 8)
    assert (result.problems, result.completions) == (2, 8)
    assert result.lines()[0].startswith("2 problems, 8 completions")


def test_spellings_of_a_right_answer_vote_together():
    pytest.importorskip("math_verify")
    rows = [{"id": "a", "completion": f"\\boxed{{{c}}}", "gold": "1/2"} for c in ("1/2", "0.5", "3", "3")]
    found = problems(*rows)
    grader = choose_grader(found)
    assert grader.name == "math"
    assert measure(found, grader=grader, ks=(4,)).measures["maj@4"].estimate == 0.5  # two right against two 3s: a tie
    assert grader.timeouts == 0
    grader.close()
    assert measure(found, grader=choose_grader(found, "final"), ks=(4,)).measures["maj@4"].estimate == 0.0


def test_correctness_in_the_file_needs_no_gold():
    rows = [{"id": i, "completion": f"Answer: {i}{j}", "correct": j < i} for i in range(4) for j in range(3)]
    result = measure(problems(*rows))
    assert set(result.measures) == {"pass@1", "mean@1", "pass@3", "mean@3", "maj@3"}
    assert result.measures["pass@1"].estimate == pytest.approx(0.5) and result.correct == "as recorded in 'correct'"
    partly = [{"id": 1, "completion": "x", "score": 0.5}, {"id": 1, "completion": "y", "score": 1}]
    result = measure(problems(*partly))
    assert result.measures["mean@2"].estimate == 0.75 and result.measures["pass@2"].estimate == 1.0
    assert any("partly correct" in note for note in result.notes)
    assert measure(problems({"id": 1, "completion": "x", "score": -1})).measures["pass@1"].estimate == 0.0


def test_answers_may_be_extracted_and_absent():
    rows = [{"id": "a", "completion": c, "gold": "Paris"} for c in ("so\nAnswer: Paris", "\\boxed{paris}", None, "no")]
    found = problems(*rows)
    result = measure(found, ks=(4,))
    assert "(--grader final, chosen from the data)" in result.correct
    assert result.measures["maj@4"].estimate == 1.0 and result.measures["em"].estimate == pytest.approx(1 / 2)
    assert result.measures["answer_f1"].estimate == pytest.approx(1 / 2)
    assert "2 of 4 completions have no answer and do not vote in Maj" in result.notes


def dump(*, missing=(), problem_count=6, samples=8):
    """verl's rows: .375 recorded as right; the outputs are free text, so that no text comparison can give them."""
    return [
        {
            "input": f"problem {p}",
            "output": f"We think, therefore {p} and {s}.",
            "gts": "7",
            "score": None if (p, s) in missing else float(s < 3),
        }
        for p in range(problem_count)
        for s in range(samples)
    ]


@pytest.mark.parametrize("missing", [{(0, 0)}, {(p, 7) for p in range(6)}, {(5, s) for s in range(8)}])
def test_a_missing_mark_costs_that_mark_and_is_counted(missing):
    whole = measure(problems(*dump()), ks=(1,)).measures
    found = problems(*dump(missing=missing))
    result = measure(found, ks=(1,))
    kept = {p: [s < 3 for s in range(8) if (p, s) not in missing] for p in range(6)}
    expected = [sum(marks) / len(marks) for marks in kept.values() if marks]
    for name in ("pass@1", "mean@1"):
        assert result.measures[name].estimate == pytest.approx(sum(expected) / len(expected))
    assert result.measures["em"].estimate == whole["em"].estimate == 0.0
    note = f"{len(missing)} of 48 completions have no recorded mark and are left out of Pass, Mean and Maj"
    assert any(note in text for text in result.notes)
    assert any("1 problems have no mark" in text for text in result.notes) == (len(missing) == 8)
    wrong = measure(found, grader=choose_grader(found, missing_wrong=True), ks=(8,))
    right = sum(row["score"] or 0.0 for row in dump(missing=missing))
    assert wrong.measures["mean@8"].estimate == pytest.approx(right / 48)
    assert any("have no recorded mark and count as wrong" in text for text in wrong.notes)


def test_a_named_grader_grades_every_problem():
    rows = [{"id": i, "completion": "7", "gold": "7", "correct": 0 if i else None} for i in range(4)]
    assert measure(problems(*rows)).measures["mean@1"].estimate == 0.0
    found = problems(*rows)
    result = measure(found, grader=choose_grader(found, "exact"))
    assert result.measures["mean@1"].estimate == 1.0 and "--grader exact)" in result.correct
    for name, row in (
        ("recorded", {"id": 1, "completion": "7", "gold": "7"}),
        ("exact", {"id": 1, "completion": "7", "correct": 1}),
        ("final", {"id": 1, "gold": "7", "correct": 1}),
        ("judge", {"id": 1, "completion": "7", "gold": "7"}),
    ):
        with pytest.raises(ConfigurationError, match="grader"):
            choose_grader(problems(row), name)


def test_votes_are_answers_or_there_is_no_majority():
    # 30% right in free text; every wrong one answers 7
    rows = [
        {"id": p, "completion": f"Thought {p}.{s}, so {'6' if s < 3 else '7'}.", "correct": s < 3}
        for p in range(20)
        for s in range(10)
    ]
    result = measure(problems(*rows))
    assert "maj@10" not in result.measures and any(
        note.startswith("no Maj: votes are answers") for note in result.notes
    )
    boxed = [{**row, "completion": row["completion"][:-2] + f"\\boxed{{{row['completion'][-2]}}}"} for row in rows]
    assert measure(problems(*boxed)).measures["maj@10"].estimate == 0.0
    given = [{**row, "pred": row["completion"][-2]} for row in rows]
    assert measure(problems(*given)).measures["maj@10"].estimate == 0.0
    invalid = [{**row, "pred": "6" if row["correct"] else "[INVALID]"} for row in rows]
    assert measure(problems(*invalid)).measures["maj@10"].estimate == 1.0


def test_an_answer_with_both_marks_counts_once():
    # a format reward marks one of the three 7s wrong: they still vote for one answer
    rows = [
        {"id": 1, "completion": f"\\boxed{{{a}}}", "correct": m} for a, m in zip("77788", (1, 1, 0, 0, 0), strict=True)
    ]
    assert measure(problems(*rows)).measures["maj@5"].estimate == 1.0


def test_signs_and_points_are_no_punctuation_in_mathematics():
    rows = [{"id": 1, "completion": c, "gold": "7"} for c in ("-7", ".7", "$7$", "7.")]
    result = measure(problems(*rows), ks=(4,))
    assert result.measures["mean@4"].estimate == result.measures["em"].estimate == 0.5
    rows = [{"id": 1, "completion": c, "gold": "12"} for c in ("1/2", "1/2", "12")]
    assert measure(problems(*rows), ks=(3,)).measures["maj@3"].estimate == 0.0


def test_no_match_at_all_names_other_graders():
    rows = [{"id": p, "completion": f"the answer is {s}", "gold": "7"} for p in range(3) for s in range(4)]
    result = measure(problems(*rows))
    assert "0 of 12 completions match their gold answer; --grader math or final compares final answers" in result.notes


def test_the_mean_uses_every_completion():
    rows = [{"id": p, "completion": "x", "correct": s < 4} for p in range(5) for s in range(8)]
    result = measure(problems(*rows), ks=(1, 2, 8))
    assert {result.measures[f"mean@{k}"].estimate for k in (1, 2, 8)} == {0.5}
    assert result.measures["pass@1"].estimate == pytest.approx(0.5)


def test_retrieval_where_passages_are_given():
    row = {"id": "a", "completion": "x", "gold": "x", "retrieved": ["p1", "p2"], "supporting": ["p2", "p9"]}
    result = measure(problems(row), retrieval_k=2)
    assert result.measures["retrieval_precision@2"].estimate == 0.5
    assert result.measures["retrieval_recall@2"].estimate == 0.5


def test_what_cannot_be_judged_is_left_out_and_said():
    rows = [{"id": "a", "completion": "7", "gold": "7"}, {"id": "b", "completion": "7"}]
    result = measure(problems(*rows))
    assert result.measures["pass@1"].estimate == 1.0 and any(
        "1 problems have no gold answer" in n for n in result.notes
    )

    class Reader(Grader):
        def marks(self, problem, answers):
            return [None if "?" in problem.gold else 1.0 for _ in answers]

    found = problems(*rows[:1], {"id": "c", "completion": "1", "gold": "?"})
    unreadable = measure(found, grader=Reader("math", "final", "as read"))
    assert unreadable.measures["pass@1"].estimate == 1.0
    assert (
        "1 problems have no gold answer that can be compared and are left out of Pass, Mean and Maj" in unreadable.notes
    )
    with pytest.raises(InvalidInputError, match="need marks, texts with gold answers"):
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
    assert len(read_completions(tmp_path / "c.parquet").problems) == 2
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
        ("{", "line 1: must be JSON"),
        ("[]", "must be a JSON object"),
        ('{"completion": "x"}', "row 1: must name its problem"),
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


def test_ids_are_text_and_empty_is_the_only_missing(tmp_path):
    ids = ["0001", "1e0", "NA", "007", str(2**53 + 1)]
    rows = [{"id": i, "problem": f"p{i}", "completion": "x", "correct": 1} for i in ids]
    rows.append({"id": None, "problem": "nameless", "completion": "x", "correct": 1})
    rows.append({"id": None, "problem": "nameless too", "completion": "x", "correct": 0})
    pd.DataFrame(rows).to_csv(tmp_path / "c.csv", index=False)
    pd.DataFrame(rows).to_parquet(tmp_path / "c.parquet")
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("c.csv", "c.parquet", "c.jsonl"):
        found = read_completions(tmp_path / name)
        assert [p.id for p in found.problems][:5] == ids and len(found.problems) == 7
        assert found.notes == ["2 rows have no id and go by the text of their problem"]
    pd.DataFrame([{"id": None, "completion": "x", "correct": 1}] * 2).to_parquet(tmp_path / "n.parquet")
    with pytest.raises(InvalidInputError, match="row 1: must name its problem"):
        read_completions(tmp_path / "n.parquet")


def test_chat_completions_in_parquet(tmp_path):
    said = [{"role": "assistant", "content": "Answer: 4"}]
    row = {"prompt": [{"role": "user", "content": "2+2?"}], "completion": said, "answer": "4"}
    pd.DataFrame([row, row]).to_parquet(tmp_path / "completions_00001.parquet")
    found = read_completions(tmp_path / "completions_00001.parquet")
    assert found.problems[0].completions == ["Answer: 4"] * 2
    assert measure(found, grader=choose_grader(found, "final")).measures["mean@2"].estimate == 1.0
    blocks = [{"role": "assistant", "content": [{"type": "text", "text": "hm"}]}, {"role": "tool", "content": "3"}]
    assert problems({"id": 1, "completion": blocks, "score": 1}).problems[0].completions == ["hm"]


def test_one_column_for_all_rows_and_only_known_names():
    rows = [{"id": 1, "completion": "x", "correct": 1.0}, {"id": 1, "completion": "y", "score": 0.0}]
    found = problems(*rows)
    assert found.columns["correct"] == "correct" and found.problems[0].correct == [1.0, None]
    for columns, message in (({"correct": "mark"}, "correct=mark is none"), ({"mark": "correct"}, "but got mark")):
        with pytest.raises(ConfigurationError, match=message):
            problems(*rows, **columns)


def test_what_may_be_a_mistake_is_said():
    def notes(*rows):
        return " ".join(problems(*({"completion": "x", "score": 1, **row} for row in rows)).notes)

    assert "1 ids name several different problems" in notes(
        {"id": "easy", "problem": "p"}, {"id": "easy", "problem": "q"}
    )
    assert "1 problems repeat the text" in notes({"id": 1, "problem": "p"}, {"id": 2, "problem": "p"})
    assert "1 rows have other gold answers" in notes({"id": 1, "gold": "p"}, {"id": 1, "gold": "q"})
    assert notes({"id": 1, "problem": "p", "gold": "7"}, {"id": 1, "problem": "p", "gold": "7"}) == ""


def test_gold_answers_of_a_row():
    gold = problems({"id": 1, "completion": "x", "gold": ["7", None, "", 8]}).problems[0].gold
    assert gold == ["7", "8"] and problems({"id": 1, "score": 1, "gold": float("nan")}).problems[0].gold == []
    with pytest.raises(InvalidInputError, match="must be text or lists of text"):
        problems({"id": 1, "completion": "x", "gold": {"text": ["7"]}})
    with pytest.raises(InvalidInputError, match="must be in"):
        problems({"id": 1, "completion": "x", "score": "good"})
    marks = problems(*({"id": 1, "score": s} for s in ("True", "false", "1.0", "", None))).problems[0].correct
    assert marks == [1.0, 0.0, 1.0, None, None]
