import pytest

from viprl.errors import InvalidInputError
from viprl.tasks.search.passages import Hit, Passage
from viprl.tasks.search.rewards import SearchReward, outcome
from viprl.tasks.search.scores import merged_ranking, retrieval_scores

CALL = {"role": "assistant", "content": "", "tool_calls": [{}], "well_formed": True}
RESULT = {"role": "tool", "name": "search", "content": "\\boxed{gold}"}


def said(content, **more):
    return {"role": "assistant", "content": content, "well_formed": True} | more


@pytest.mark.parametrize(
    ("completion", "answer", "well_formed"),
    [
        ([said("\\boxed{x}")], "x", True),
        ([CALL, RESULT, said("so \\boxed{x}")], "x", True),
        ([CALL, RESULT, said("I do not know")], None, False),
        ([CALL, RESULT], None, False),
        ([CALL, RESULT, CALL], None, False),
        ([said("\\boxed{early}", tool_calls=[{}]), RESULT, said("no")], None, False),
        ([CALL | {"well_formed": False}, RESULT, said("\\boxed{x}")], "x", False),
        ([said("\\boxed{x}", well_formed=False)], "x", False),
        ([{"role": "assistant", "content": "<think>a</think>\\boxed{x}"}], "x", True),
        ([{"role": "assistant", "content": "<think>\\boxed{thought}"}], None, False),
        ([{"role": "assistant", "content": "<tool_response>\\boxed{invented}</tool_response>"}], None, False),
        ([{"role": "assistant", "content": "<tool_call>{</tool_call> \\boxed{x}"}], None, False),
        ([], None, False),
        ("\\boxed{x}", "x", True),
        ("<think>t</think> \\boxed{x}", "x", True),
        ('<tool_call>{"name": "search"}</tool_call>\\boxed{x}', None, False),
    ],
)
def test_outcome(completion, answer, well_formed):
    result = outcome(completion)
    assert (result.answer, result.well_formed) == (answer, well_formed)


def test_rewards():
    right, wrong = [said("\\boxed{Bob Ross}")], [said("\\boxed{Bob}", well_formed=False)]
    answers = [["Bob Ross", "Robert"], ["Bob Ross"]]
    assert SearchReward()(completions=[right, wrong], answers=answers) == [1.0, 0.0]
    assert SearchReward("f1")(completions=[right, wrong], answers=answers) == pytest.approx([1.0, 2 / 3])
    composite = SearchReward("f1", format_weight=0.1)
    assert composite(completions=[right, wrong], answers=answers) == pytest.approx([1.0, 0.9 * 2 / 3])
    assert SearchReward("f1", gated=True)(completions=[right, wrong], answers=answers) == [1.0, 0.0]
    assert SearchReward().reward_kind == "binary"
    assert composite.reward_kind == SearchReward("f1").reward_kind == "real"


def test_refused_settings():
    with pytest.raises(InvalidInputError, match="'em' or 'f1'"):
        SearchReward("bleu")
    with pytest.raises(InvalidInputError, match="format_weight"):
        SearchReward(format_weight=1.0)


def hits(text):
    return [Hit(Passage(letter, id=letter), 1.0) for letter in text]


def test_retrieval_reading_of_f1_and_precision():
    assert merged_ranking([hits("abcde")]) == list("abcde")
    assert merged_ranking([hits("abc"), hits("xay"), []]) == ["a", "x", "b", "c", "y"]
    scores = retrieval_scores([hits("abcde")], ("a", "e", "z"), 5)
    assert scores == pytest.approx(
        {
            "retrieval_precision@5": 2 / 5,
            "retrieval_recall@5": 2 / 3,
            "retrieval_f1@5": 2 * 2 / (5 + 3),
            "retrieval_recall_all": 2 / 3,
        }
    )
    two = retrieval_scores([hits("abcde"), hits("zfghi")], ("a", "z"), 5)
    assert two["retrieval_recall@5"] == 1 and two["retrieval_precision@5"] == 2 / 5
    assert set(retrieval_scores([], ("a",), 5).values()) == {0.0}
