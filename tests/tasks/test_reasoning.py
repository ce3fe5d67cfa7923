"""reasoning-gym data sets: prompts, ids, the verifier's scores."""

from __future__ import annotations

import pytest

pytest.importorskip("datasets")
pytest.importorskip("reasoning_gym")

from viprl.errors import ConfigurationError, InvalidInputError
from viprl.tasks import ReasoningGymTask, make_task
from viprl.tasks.reasoning import extract_answer


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def test_right_answers_get_one_and_wrong_ones_zero():
    task = make_task("reasoning_gym/basic_arithmetic", train_size=20, test_size=10)
    for part in (task.train_dataset(), task.test_dataset()):
        right = [said(f"so <answer> {a} </answer>") for a in part["answer"]]
        columns = {"answer": part["answer"], "prompt_id": part["prompt_id"]}
        assert task.reward(part["prompt"], right, **columns) == [1.0] * len(part)
        for wrong in ("<answer>x</answer>", "no tags", "<answer></answer>", "<answer>1"):
            assert task.reward(part["prompt"], [said(wrong)] * len(part), **columns) == [0.0] * len(part)


def test_ids_are_unique_and_the_parts_disjoint():
    task = make_task("reasoning_gym/chain_sum", train_size=200, test_size=50, config={"max_terms": 2, "max_digits": 1})
    train, test = task.train_dataset(), task.test_dataset()
    texts = [p[0]["content"] for p in train["prompt"]]
    assert len(set(train["prompt_id"])) == len(train) == len(set(texts))  # repeated questions are left out
    assert not set(texts) & {p[0]["content"] for p in test["prompt"]}


def test_partial_scores_are_kept_or_cut():
    for binary, expected in ((True, 0.0), (False, 0.5)):
        task = ReasoningGymTask(dataset="basic_arithmetic", train_size=4, test_size=2, binary=binary)
        row = task.train_dataset()[0]
        padded = row["answer"] + "_" * len(row["answer"])  # the verifier gives the share that is the answer
        columns = {"answer": [row["answer"]], "prompt_id": [row["prompt_id"]]}
        assert task.reward([row["prompt"]], [said(f"<answer>{padded}</answer>")], **columns) == [expected]


def test_a_verifier_that_raises_makes_a_wrong_answer_not_a_crash():
    task = ReasoningGymTask(dataset="basic_arithmetic", train_size=4, test_size=2)

    class Raises:
        def score_answer(self, answer, entry):
            raise ValueError("cannot parse")

    assert task._score(Raises(), "x", {"answer": "3"}) == 0.0
    assert task._score(Raises(), "3", {"answer": "3"}) is None  # it fails on its own answer: nothing is known


def test_answers_from_tags_or_the_whole_text():
    assert extract_answer("<answer>1</answer> no <answer>\n2\n</answer>") == "2"
    assert extract_answer(" 7 \n", "text") == "7" and extract_answer("  ", "text") is None
    assert extract_answer("3 + 4 = 7.", "number") == "7" and extract_answer("so -2.5", "number") == "-2.5"
    assert extract_answer("none", "number") is None


def test_errors_state_the_rule():
    with pytest.raises(ConfigurationError, match="nearest: basic_arithmetic"):
        make_task("reasoning_gym/basic_arithmetics")
    with pytest.raises(ConfigurationError, match="names its data set"):
        make_task("reasoning_gym/chain_sum", dataset="chain_sum")
    with pytest.raises(ConfigurationError, match="refused config"):
        make_task("reasoning_gym/chain_sum", config={"no_such_setting": 1})
    with pytest.raises(InvalidInputError, match="'tags', 'text' or 'number'"):
        ReasoningGymTask(dataset="chain_sum", answer="json")


@pytest.mark.slow
def test_every_data_set_can_be_made():
    """All names: the task either builds and grades its own answers, or refuses in words."""
    from reasoning_gym.factory import DATASETS

    refused = []
    for name in DATASETS:
        try:
            task = ReasoningGymTask(dataset=name, train_size=2, test_size=2)
            rows = task.train_dataset()
        except ConfigurationError:
            refused.append(name)
            continue
        right = [said(f"<answer>{a}</answer>") for a in rows["answer"]]
        rewards = task.reward(rows["prompt"], right, answer=rows["answer"], prompt_id=rows["prompt_id"])
        assert all(r is None or 0 <= r <= 1 for r in rewards), name
    assert set(refused) <= {"composite"}, refused  # composite needs a config that names its parts
