"""Rows -> prompts, by one rule."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from viprl.errors import InvalidInputError
from viprl.prompts import choose_rule, name_rows


def rows() -> list[dict]:
    return [
        {"prompt": "a", "name": "1", "level": 3, "extra_info": {"rate": 0.5}},
        {"prompt": "b", "name": "2", "level": None, "extra_info": {"rate": None}},
        {"prompt": "a", "name": "1", "level": 9, "extra_info": {"rate": 0.9}},
    ]


def test_a_prompts_first_row_speaks_for_it() -> None:
    named = name_rows(rows(), choose_rule((), id_column="name"), side_information=["level"], initial_rates="rate")
    assert named.row_ids == ["1", "2", "1"] and named.first_rows == [0, 1]
    assert named.prompts.ids == ["1", "2"] and named.prompts.read_texts() == ["a", "b"]
    np.testing.assert_array_equal(named.prompts.side_information["level"], [3, np.nan])
    np.testing.assert_array_equal(named.prompts.initial_rates, [0.5, np.nan])


def test_rows_without_prompts_give_prompts_without_texts() -> None:
    bare = [{"name": row["name"]} for row in rows()]
    assert name_rows(bare, choose_rule((), id_column="name")).prompts.texts is None


def test_columns_must_hold_numbers() -> None:
    rule = choose_rule((), id_column="name")
    with pytest.raises(InvalidInputError, match="must hold numbers"):
        name_rows(rows(), rule, side_information=["prompt"])
    with pytest.raises(InvalidInputError, match="'lvel' has none"):
        name_rows(rows(), rule, side_information=["lvel"])


def test_an_id_column_that_names_many_prompts_is_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    many = [{"prompt": f"text {i}", "difficulty": str(i % 3)} for i in range(9)]
    with caplog.at_level(logging.WARNING, "viprl"):
        name_rows(many, choose_rule((), id_column="difficulty"))
    assert "3 of 3 ids in column 'difficulty' name prompts with different texts" in caplog.text
