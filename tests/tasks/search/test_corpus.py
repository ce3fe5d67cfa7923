import json

import pytest

from viprl.errors import InvalidInputError
from viprl.tasks.search.corpus import load_corpus, record_passages
from viprl.tasks.search.passages import Passage, passage_id


def test_formats_of_one_folder(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"title": "A", "text": "first"}\n\n{"contents": "\\"B\\"\\nsecond"}\n')
    (tmp_path / "b.json").write_text('[{"title": "C", "text": "third"}]')
    (tmp_path / "c.txt").write_text("one two three\n\nfour")
    (tmp_path / "ignored.bin").write_bytes(b"\x00")
    passages = load_corpus(tmp_path, chunk_words=2)
    assert [(p.title, p.text) for p in passages] == [
        ("A", "first"),
        ("B", "second"),
        ("C", "third"),
        ("c", "one two"),
        ("c", "three"),
        ("c", "four"),
    ]


def test_parquet(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pandas.DataFrame({"id": [7, 8], "title": ["A", "B"], "text": ["x", "y"]}).to_parquet(tmp_path / "p.parquet")
    assert [p.id for p in load_corpus(tmp_path / "p.parquet")] == ["7", "8"]


def test_question_records_give_their_paragraphs_once(tmp_path):
    paragraphs = [{"title": "A", "paragraph_text": "x"}, {"title": "B", "paragraph_text": "y"}]
    lines = [json.dumps({"id": i, "question": "q", "paragraphs": paragraphs}) for i in range(3)]
    (tmp_path / "m.jsonl").write_text("\n".join(lines))
    passages = load_corpus(tmp_path / "m.jsonl")
    assert [p.id for p in passages] == [passage_id("A", "x"), passage_id("B", "y")]


@pytest.mark.parametrize(
    "context",
    [[["A", ["one.", " two."]]], {"title": ["A"], "sentences": [["one.", " two."]]}],
    ids=["original", "hub"],
)
def test_hotpot_context(context):
    assert record_passages({"question": "q", "context": context}) == [Passage("one. two.", "A")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"title": "A"}', "x.jsonl:1"),
        ("[1]", "x.jsonl:1"),
        ("{broken", "x.jsonl:1"),
        ("", "at least one passage"),
    ],
)
def test_bad_records_name_file_and_line(tmp_path, content, message):
    (tmp_path / "x.jsonl").write_text(content)
    with pytest.raises(InvalidInputError, match=message):
        load_corpus(tmp_path / "x.jsonl")


def test_missing_path_and_conflicting_ids(tmp_path):
    with pytest.raises(InvalidInputError, match="does not exist"):
        load_corpus(tmp_path / "nowhere")
    (tmp_path / "x.jsonl").write_text('{"id": "1", "text": "a"}\n{"id": "1", "text": "b"}')
    with pytest.raises(InvalidInputError, match="unique"):
        load_corpus(tmp_path)


@pytest.mark.parametrize(
    "document",
    [
        {"id": "7", "contents": '"Title"\nsome text'},
        {"id": "7", "title": "Title", "text": "some text"},
        {"docid": 7, "title": "Title", "contents": '"Title"\nsome text'},
    ],
)
def test_documents_of_servers(document):
    assert Passage.from_document(document) == Passage("some text", "Title", "7")


def test_document_round_trip():
    passage = Passage("text\nwith lines", 'a "quoted" title', "x")
    assert Passage.from_document(passage.to_document()) == passage
    assert Passage.from_document("bare").text == "bare"
