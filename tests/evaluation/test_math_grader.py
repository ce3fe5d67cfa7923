"""Final answers, and grading in a worker."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("math_verify")

from viprl.evaluation.math_grader import MathGrader, final_answer


@pytest.fixture(scope="module")
def grader():
    grader = MathGrader(seconds=20.0)  # generous: a busy machine must not turn right answers wrong
    yield grader
    grader.close()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 12", "12"),
        ("so\n**Answer:** 12\n", "12"),
        ("Final answer: $\\frac{1}{2}$", "$\\frac{1}{2}$"),
        ("It is \\boxed{1+\\frac{1}{2}} as shown", "1+\\frac{1}{2}"),
        ("\\boxed{3} and then \\boxed{4}", "4"),
        ("Answer: \\boxed{7}", "7"),
        ("\\boxed{3 and no end", None),
        ("\\boxed{5} then \\boxed{6", "5"),
        ("no answer here", None),
        ("", None),
        ("\\boxed{}", ""),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("answer", "gold", "reward"),
    [
        ("0.5", "\\frac{1}{2}", 1.0),
        ("1,000", "1000", 1.0),
        ("x^2+1", "1+x^2", 1.0),
        ("(1, 2)", "(1,2)", 1.0),
        ("\\{2,1\\}", "\\{1,2\\}", 1.0),
        ("17 dollars", "17", 1.0),
        ("5 million", "5", 0.0),
        ("\u22123", "-3", 1.0),
        ("3", "4", 0.0),
        ("", "4", 0.0),
        ("\\frac{10}{", "5", 0.0),
        ("\\{\\{\\left(", "5", 0.0),
        ("\\begin{matrix} 1 & ", "5", 0.0),
        ("\x00\ud800", "5", 0.0),
    ],
)
def test_grading(grader, answer, gold, reward):
    assert grader.grade([answer], [gold]) == [reward]


def test_no_answer_and_endless_answers_are_wrong_without_being_parsed():
    grader = MathGrader()
    assert grader.grade([None, "9" * 5000], ["1", "1"]) == [0.0, 0.0]
    assert grader._worker is None


def test_an_answer_that_takes_for_ever_is_wrong_and_the_next_one_is_graded():
    grader = MathGrader(seconds=20.0)
    assert grader.grade(["2/4"], ["1/2"]) == [1.0]
    grader.seconds = 0.5
    assert grader.grade(["10^{10^{10}}"], ["5"]) == [0.0]
    assert grader.timeouts == 1
    grader.seconds = 20.0
    assert grader.grade(["3/4"], ["0.75"]) == [1.0]
    grader.close()


def test_grading_works_outside_the_main_thread(grader):
    found: list[list[float | None]] = []
    thread = threading.Thread(target=lambda: found.append(grader.grade(["4/8"], ["0.5"])))
    thread.start()
    thread.join()
    assert found == [[1.0]]


def test_a_worker_that_was_ended_is_replaced(grader):
    grader.grade(["5/10"], ["0.5"])
    grader._worker._process.kill()
    grader._worker._process.wait()
    assert grader.grade(["7/7"], ["3"]) == [0.0]  # asked of the ended worker: counts as wrong
    assert grader.grade(["6/12"], ["0.5"]) == [1.0]
