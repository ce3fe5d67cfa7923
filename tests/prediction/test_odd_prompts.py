"""Prompts that look alike, and features at the ends of floating point: everything must be predicted and learned."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viprl.errors import CheckpointError, InvalidInputError
from viprl.prediction import (
    CalibratedPredictor,
    GaussianProcessPredictor,
    RewardVariancePredictor,
    Ridge,
)
from viprl.prediction.features import FAR, PromptFeatures
from viprl.testing.checks import same_prediction

KINDS = (CalibratedPredictor, RewardVariancePredictor)
SIZES = (1, 2, 5, 20, 64, 84, 95, 96, 97, 300)


def names(count):
    return [f"p{i}" for i in range(count)]


def works(predictor, ids, steps=3):
    """Predict and observe some steps, and save and load between them; returns the last prediction."""
    rng = np.random.default_rng(0)
    for _ in range(steps):
        batch = list(rng.permutation(ids)[: max(1, len(ids) // 2)])
        found = predictor.predict(batch)
        assert ((found.mean >= 0) & (found.mean <= 1)).all() and np.isfinite(found.reward_variance).all()
        predictor.observe(batch, rng.binomial(8, 0.4, len(batch)), np.full(len(batch), 8))
        predictor.load_state_dict(predictor.state_dict())
    return predictor.predict(ids)


TEXTS = {
    "equal": lambda i: "Describe the picture.",
    "equal but for words that occur once": lambda i: f'[{{"role":"user"}}]{i}',
    "equal but for one": lambda i: "Describe the picture." if i else "Describe the sound of one hand.",
    "two kinds": lambda i: ("Describe the picture.", "How many dogs are there?")[i % 2],
    "empty": lambda i: "",
    "spaces": lambda i: " \n",
    "mostly empty": lambda i: "" if i % 9 else "What is this?",
    "one long prompt": lambda i: "word " * (2000 if i == 3 else 2),
    "a lone surrogate": lambda i: f"What \udfff is \ud800{i}?",
}


@pytest.mark.parametrize("count", [1, 5, 17, 200])
@pytest.mark.parametrize("kind", TEXTS)
def test_prompts_of_nearly_the_same_text(kind, count):
    for make in KINDS:
        works(make(prompt_ids=names(count), texts=[TEXTS[kind](i) for i in range(count)]), names(count))


def test_equal_texts_are_as_good_as_none():
    ids = names(64)
    alike, without = (CalibratedPredictor(prompt_ids=ids, texts=texts) for texts in (["One text."] * 64, None))
    assert works(alike, ids).mean == pytest.approx(works(without, ids).mean, abs=1e-6)


def test_a_block_at_rounding_level_says_nothing():
    texts = ["The same, only this word differs: " + "abcdefgh"[i % 8] for i in range(64)]
    assert not PromptFeatures(64, None, texts[:1] * 64, None).rows(np.arange(64))[:, 1:].any()
    found = PromptFeatures(64, None, texts, None)
    lexical = found.rows(np.arange(64))[:, found.groups["lexical"]]
    assert np.square(lexical).sum(axis=1).mean() == pytest.approx(1.0, abs=0.01), "what differs is seen"


@settings(max_examples=8, deadline=None)
@given(st.lists(st.text(max_size=12), min_size=1, max_size=40), st.integers(1, 5))
def test_any_texts(texts, times):
    ids = names(len(texts) * times)
    works(CalibratedPredictor(prompt_ids=ids, texts=texts * times), ids, steps=2)


numbers = st.floats(allow_nan=False, allow_infinity=False, width=64)


@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from(["float16", "float32", "float64", "int64"]))
def test_any_finite_embeddings(data, kind):
    count, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 6))
    pool = data.draw(st.lists(st.lists(numbers, min_size=width, max_size=width), min_size=1, max_size=4))
    largest = float(np.finfo(kind).max) if kind.startswith("f") else 2.0**62
    rows = np.clip(np.array([pool[i % len(pool)] for i in range(count)]), -largest, largest).astype(kind)
    ids = names(count)
    for make in KINDS:
        works(make(rows, prompt_ids=ids), ids, steps=2)


@pytest.mark.parametrize("scale", [1e-250, 1e-30, 1e-8, 1e8, 1e30, 1e300])
def test_embeddings_of_any_magnitude_say_the_same(scale):
    x = np.random.default_rng(0).normal(size=(50, 6))
    plain, scaled = (CalibratedPredictor(values, prompt_ids=names(50)) for values in (x, x * scale))
    assert works(scaled, names(50)).mean == pytest.approx(works(plain, names(50)).mean, abs=1e-4)


def test_one_embedding_far_away_is_held_within_bounds():
    x = np.random.default_rng(0).normal(size=(20_000, 3))
    x[7] = 1e290  # not among the rows that the components are computed from
    found = PromptFeatures(20_000, x, None, None).rows(np.array([6, 7]))
    assert np.abs(found).max() <= FAR and np.abs(found[0, 1:]).max() < 5


@settings(max_examples=25, deadline=None)
@given(st.lists(st.one_of(numbers, st.just(np.nan)), min_size=1, max_size=30))
def test_any_side_information(values):
    ids = names(len(values))
    works(CalibratedPredictor(prompt_ids=ids, side_information={"x": values}), ids, steps=2)


@pytest.mark.parametrize("scale", [1e-250, 1e-12, 1e12, 1e299])
def test_side_information_of_any_magnitude_says_the_same(scale):
    values = np.random.default_rng(0).normal(size=50)
    plain, scaled = (PromptFeatures(50, None, None, {"x": column}) for column in (values, values * scale))
    assert scaled.rows(np.arange(50)) == pytest.approx(plain.rows(np.arange(50)), abs=1e-5)


def of_size(make, count):
    rng = np.random.default_rng(1)
    return make(
        rng.normal(size=(500, 150))[:count],
        prompt_ids=names(count),
        texts=[f"Solve problem {i % 37} in {i % 5} steps, x_{i}?" for i in range(count)],
        side_information={"rate": rng.uniform(size=500)[:count]},
    )


@pytest.mark.parametrize("make", KINDS)
def test_a_state_merges_into_a_data_set_of_any_size(make):
    built = {count: of_size(make, count) for count in SIZES}
    states = {}
    for count, predictor in built.items():
        works(predictor, names(count), steps=2)
        states[count] = predictor.state_dict(), predictor.predict(names(count)).reward_variance
    for old, (state, expected) in states.items():
        for new, predictor in built.items():
            shared = min(old, new)
            assert len(predictor.merge_state(state)["kept"]) == shared
            found = predictor.predict(names(shared)).reward_variance
            assert found == pytest.approx(expected[:shared], rel=0.02, abs=2e-3)
            works(predictor, names(new), steps=1)


@pytest.mark.parametrize("make", KINDS)
def test_ids_in_the_place_of_embeddings_are_explained(make):
    for ids in (["a", "b"], [1, 2], np.array(["a", "b"])):
        with pytest.raises(TypeError, match=r"prompt_ids=\[\.\.\.\]"):
            make(ids, prompt_ids=["a", "b"])
        with pytest.raises(TypeError, match=r"prompt_ids=\[\.\.\.\]"):
            make(ids)


@pytest.mark.parametrize("make", [Ridge, GaussianProcessPredictor])
def test_ids_in_the_place_of_embeddings_are_explained_by_the_comparison_predictors_too(make):
    with pytest.raises(TypeError, match=r"prompt_ids=\[\.\.\.\]"):
        make(["a", "b"], prompt_ids=["a", "b"])


def test_texts_that_are_none_are_named():
    with pytest.raises(TypeError, match="one string"):
        CalibratedPredictor(prompt_ids=["a", "b"], texts="ab")
    with pytest.raises(TypeError, match="entry 1 is of type NoneType"):
        CalibratedPredictor(prompt_ids=["a", "b"], texts=["a", None])
    with pytest.raises(InvalidInputError, match="differ in length"):
        CalibratedPredictor([[1.0], [1.0, 2.0]], prompt_ids=["a", "b"])


def test_no_prompts_at_all():
    predictor = CalibratedPredictor(np.zeros((0, 3)), prompt_ids=[], texts=[], side_information={"x": []})
    assert len(predictor.predict([])) == 0


def test_maps_that_are_not_finite_are_refused():
    predictor = CalibratedPredictor(np.eye(3), prompt_ids=names(3))
    state = predictor.state_dict()
    state["features"]["embedding"]["centre"][0] = np.inf
    before = predictor.predict(names(3))
    with pytest.raises(CheckpointError, match="finite"):
        predictor.load_state_dict(state)
    assert same_prediction(predictor.predict(names(3)), before)
