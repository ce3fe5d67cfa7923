import json

import pytest

from viprl.errors import InvalidInputError
from viprl.tasks.search.contamination import contamination
from viprl.tasks.search.corpus import load_corpus
from viprl.tasks.search.passages import passage_id
from viprl.tasks.search.questions import Question, load_questions, parse_question


def test_musique_record():
    record = {
        "id": "2hop__1_2",
        "question": "Who?",
        "answer": "Bob",
        "answer_aliases": ["Robert", "Bob"],
        "answerable": True,
        "paragraphs": [
            {"title": "A", "paragraph_text": "x", "is_supporting": True},
            {"title": "B", "paragraph_text": "y", "is_supporting": False},
        ],
        "question_decomposition": [{"id": 1}, {"id": 2}],
    }
    assert parse_question(record) == Question(
        "2hop__1_2", "Who?", ("Bob", "Robert"), (passage_id("A", "x"),), ("1", "2")
    )


@pytest.mark.parametrize(
    "record",
    [
        {"Question": "Who?", "Answer": "Bob"},
        {"question": "Who?", "golden_answers": ["Bob"]},
        {"question": "Who?", "answers": ["Bob"], "id": ""},
        {"_id": None, "question": "Who?", "answer": "Bob"},
    ],
    ids=["bamboogle", "flashrag", "plain", "hotpot"],
)
def test_other_records(record):
    found = parse_question(record, default_id="d")
    assert (found.id, found.question, found.answers) == ("d", "Who?", ("Bob",))


@pytest.mark.parametrize("hub", [False, True])
def test_hotpot_record_and_its_corpus_agree_on_ids(tmp_path, hub):
    context = [["A", ["one.", " two."]], ["B", ["three."]]]
    record = {"_id": "h", "question": "Who?", "answer": "yes", "context": context, "supporting_facts": [["B", 0]]}
    if hub:
        record["context"] = {"title": ["A", "B"], "sentences": [c[1] for c in context]}
        record["supporting_facts"] = {"title": ["B"], "sent_id": [0]}
    (tmp_path / "h.json").write_text(json.dumps([record]))
    (question,) = load_questions("hotpotqa", tmp_path / "h.json")
    by_id = {p.id: p for p in load_corpus(tmp_path / "h.json")}
    assert [by_id[i].title for i in question.supporting] == ["B"]


def test_loading(tmp_path):
    file = tmp_path / "q.jsonl"
    file.write_text("\n".join(json.dumps({"question": f"q{i}", "answer": i, "answerable": i != 1}) for i in range(4)))
    assert [q.id for q in load_questions("mine", file)] == ["mine_000000", "mine_000002", "mine_000003"]
    assert len(load_questions("mine", file, limit=2)) == 2
    file.write_text('{"id": 1, "question": "a", "answer": "x"}\n{"id": 1, "question": "b", "answer": "y"}')
    with pytest.raises(InvalidInputError, match="unique"):
        load_questions("mine", file)
    file.write_text('{"question": "a"}')
    with pytest.raises(InvalidInputError, match="answer"):
        load_questions("mine", file)
    with pytest.raises(InvalidInputError, match="does not exist"):
        load_questions("mine", tmp_path / "nowhere.jsonl")


@pytest.mark.data
def test_shared_data(viprl_data):
    bamboogle = load_questions("bamboogle", viprl_data / "bamboogle.jsonl")
    plain = load_questions("musique", viprl_data / "musique_200_qa.jsonl")
    full = load_questions("musique", viprl_data / "musique_dev_200_paragraphs.jsonl")
    assert (len(bamboogle), len(plain), len(full)) == (125, 200, 200)
    assert all(2 <= len(q.supporting) <= 4 and len(q.hops) == len(q.supporting) for q in full)
    corpus = {p.id for p in load_corpus(viprl_data / "musique_dev_200_paragraphs.jsonl")}
    assert all(set(q.supporting) <= corpus for q in full)
    assert not contamination(full, bamboogle).contaminated


def question(number, text, hops=()):
    return Question(number, text, ("x",), hops=tuple(hops))


def test_contamination():
    train = [
        question("t1", "Who is the mother of the president of France today?"),
        question("t2", "Where was the director of Jaws born?", ["1", "2"]),
        question("t3", "When did the war end?", ["3"]),
        question("same", "A totally different thing?"),
    ]
    test = [
        question("e1", "who is the MOTHER of the president of France, today"),
        question("e2", "Who is the mother of the president of France right now today?"),
        question("e3", "Unrelated words only here, nothing else.", ["3", "2"]),
        question("e4", "Unrelated words entirely, one hop unseen.", ["3", "9"]),
        question("same", "Completely new question, old id?"),
        question("e5", "Who is the father of the king of Spain?"),
    ]
    report = contamination(train, test, n=3, threshold=0.5)
    assert [(leak.test_id, leak.train_id) for leak in report.exact] == [("e1", "t1")]
    assert [(leak.test_id, leak.train_id) for leak in report.near] == [("e2", "t1")]
    assert [leak.test_id for leak in report.shared_hops] == ["e3"]
    assert report.shared_ids == ("same",)
    assert report.contaminated == {"e1", "e2", "e3", "same"}
    assert "4 of 6" in report.summary()
    with pytest.raises(InvalidInputError, match="threshold"):
        contamination(train, test, threshold=0)
