"""Feature blocks against independent implementations."""

from __future__ import annotations

import numpy as np
import pytest

from viprl.errors import CheckpointError, InvalidInputError
from viprl.prediction.features import PromptFeatures
from viprl.prediction.lexical import inverse_document_frequency, leading_directions, token_counts, weigh
from viprl.prediction.side import SideColumns
from viprl.prediction.surface import NAMES, surface_features

TEXTS = [f"Find the value of $x_{i}$ if {i} + {i * i} = \\frac{{{i}}}{{3}}." for i in range(40)]
TEXTS += [f"How many ways are there to choose {i} people out of {2 * i}?" for i in range(40)]


def test_tfidf_equals_scikit_learn():
    text = pytest.importorskip("sklearn.feature_extraction.text")
    counts = token_counts(TEXTS, buckets=2**22)  # no collisions
    found = weigh(counts, inverse_document_frequency(counts))
    vectoriser = text.TfidfVectorizer(
        token_pattern=r"\\[a-zA-Z]+|[a-zA-Z]+|\d+|[^\sa-zA-Z\d]", ngram_range=(1, 2), min_df=2, sublinear_tf=True
    )
    expected = vectoriser.fit_transform(TEXTS)
    assert (found @ found.T).toarray() == pytest.approx((expected @ expected.T).toarray(), abs=1e-5)


def test_leading_directions_span_the_svd():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 30)) * np.exp(-np.arange(30) / 3)
    found = leading_directions(x, 5)
    exact = np.linalg.svd(x, full_matrices=False)[2][:5].T
    assert np.abs((found * exact).sum(axis=0)) == pytest.approx(1.0, abs=1e-3)
    assert np.array_equal(found, leading_directions(x, 5))


def test_surface_counts():
    row = dict(zip(NAMES, surface_features(["What is 12 + 345? $\\frac{1}{2}$"])[0], strict=True))
    assert row["numbers"] == pytest.approx(np.log1p(4))
    assert row["largest_number"] == pytest.approx(np.log1p(345))
    assert row["commands"] == pytest.approx(np.log1p(1))
    assert row["count_'$'"] == pytest.approx(np.log1p(2))


def test_surface_features_of_odd_texts_are_finite():
    assert np.isfinite(surface_features(["", " ", "\n\n", "9" * 400, "é漢字🙂"])).all()


def test_side_information_with_missing_values():
    values = np.array([0.1, 0.5, np.nan, 0.9, 0.3, np.nan])
    x = SideColumns("side:rate", values).rows(np.arange(6))
    assert list(x[:, 0]) == [0, 0, 1, 0, 0, 1]
    assert not x[[2, 5], 1:].any()
    assert x[[0, 1, 3, 4], 1].mean() == pytest.approx(0, abs=1e-6)
    assert (np.diff(x[[0, 4, 1, 3], 2]) > 0).all(), "the logit rises with the rate"


@pytest.mark.parametrize("values", [np.full(5, np.nan), np.full(5, 3.0), np.array([0.0, 1.0, 0.0, 1.0, np.nan])])
def test_degenerate_side_information_is_harmless(values):
    assert np.isfinite(SideColumns("side:x", values).rows(np.arange(5))).all()


def test_blocks_are_scaled_alike_whatever_the_units():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 12))
    a = PromptFeatures(80, x, TEXTS, None).rows(np.arange(80))
    b = PromptFeatures(80, 1000 * x, TEXTS, None).rows(np.arange(80))
    assert a == pytest.approx(b, abs=1e-3)
    assert np.square(a[:, 1:13]).sum(axis=1).mean() == pytest.approx(1.0, abs=0.01)


def test_unknown_rows_are_the_average_prompt():
    x = PromptFeatures(80, np.random.default_rng(0).normal(size=(80, 3)), None, None).rows(np.array([-1, 2]))
    assert list(x[0]) == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"embeddings": np.zeros((3, 2))}, "one row a prompt"),
        ({"embeddings": np.full((80, 2), np.nan)}, "finite"),
        ({"texts": ["a"]}, "one entry a prompt"),
        ({"side_information": {"d": [1.0]}}, "side:d must have one entry"),
        ({"side_information": {"d": [np.inf] * 80}}, "infinities"),
        ({"side_information": np.zeros(80)}, "mapping or"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(changes, rule):
    arguments = {"embeddings": None, "texts": None, "side_information": None} | changes
    with pytest.raises(InvalidInputError, match=rule):
        PromptFeatures(80, **arguments)


def test_maps_of_other_blocks_are_refused():
    with_text, without = PromptFeatures(80, None, TEXTS, None), PromptFeatures(80, None, None, None)
    with pytest.raises(CheckpointError, match="features"):
        without.load(with_text.state())
