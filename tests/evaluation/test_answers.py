"""Exact match and token F1 against the definition, with the awkward strings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viprl.errors import InvalidInputError
from viprl.evaluation import exact_match, normalize_answer, token_f1, token_overlap, token_precision

WORDS = st.lists(st.sampled_from(["paris", "rome", "1984", "übermut", "東京"]), max_size=6)


def overlap_by_removal(said: list[str], meant: list[str]) -> int:
    """Tokens in common, counted by crossing them off one at a time."""
    left, common = list(meant), 0
    for word in said:
        if word in left:
            left.remove(word)
            common += 1
    return common


@given(WORDS, WORDS)
def test_token_overlap_is_the_definition(said, meant):
    overlap = token_overlap(" ".join(said), " ".join(meant))
    common = overlap_by_removal(said, meant)
    if not said or not meant:
        expected = (1.0, 1.0, 1.0) if said == meant else (0.0, 0.0, 0.0)
    else:
        precision, recall = common / len(said), common / len(meant)
        f1 = 2 * common / (len(said) + len(meant))
        expected = (f1, precision, recall)
    assert (overlap.f1, overlap.precision, overlap.recall) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Eiffel Tower!", "eiffel tower"),
        ("A man, an apple & the end.", "man apple end"),
        ("Theatre", "theatre"),
        ("“Quoted” – dash…", "quoted dash"),
        ("Cafe\u0301", "café"),
        ("", ""),
        ("the", ""),
        ("  \t\n", ""),
        ("U.S.A.", "usa"),
        ("3.14", "314"),
    ],
)
def test_normalisation(text, normal):
    assert normalize_answer(text) == normal


@given(st.text())
def test_normalisation_is_idempotent_enough_to_compare(text):
    assert exact_match(text, text) == 1.0
    assert token_f1(text, text) == 1.0


def test_exact_match_over_aliases_and_missing_answers():
    assert exact_match("eiffel tower", ["La tour Eiffel", "The Eiffel Tower"]) == 1.0
    assert exact_match("tower", "Eiffel Tower") == 0.0
    assert exact_match(None, "x") == 0.0
    assert exact_match("", "x") == 0.0
    assert exact_match("", "") == 1.0
    assert exact_match("caf\u00e9", "cafe\u0301") == 1.0


def test_best_alias_is_taken():
    assert token_f1("new york city", ["york", "new york"]) == pytest.approx(2 * (2 / 3) / (1 + 2 / 3))
    assert token_precision("new york city", ["york", "new york"]) == pytest.approx(2 / 3)


def test_closed_answers_match_only_themselves():
    assert token_f1("yes", "yes it is") == 0.0
    assert token_f1("no", "no") == 1.0
    assert token_f1("noanswer at all", "noanswer") == 0.0


def test_none_and_no_gold():
    assert token_f1(None, "x") == 0.0
    with pytest.raises(InvalidInputError, match="gold"):
        token_f1("x", [])
    with pytest.raises(InvalidInputError, match="gold"):
        exact_match("x", [])
