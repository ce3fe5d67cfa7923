"""Predictors by name: what each reads, and what is refused, for both trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from viprl import prediction
from viprl.errors import ConfigurationError
from viprl.integrations.predictors import (
    LEARNING,
    NEEDS_EMBEDDINGS,
    PREDICTORS,
    TAKES_NEW_PROMPTS,
    build_predictor,
    check_predictor,
    predictor_class,
)

IDS = [f"q{i}" for i in range(12)]


def texts() -> list[str]:
    return [f"How much is {i} and {i * i}?" for i in range(12)]


def unread() -> list[str]:
    raise AssertionError("this predictor reads no texts")


@pytest.mark.parametrize("name", PREDICTORS)
def test_every_name_is_a_predictor_over_the_prompts(name: str, tmp_path: Path) -> None:
    embedded = name in NEEDS_EMBEDDINGS
    found = build_predictor(
        name,
        IDS,
        texts if embedded or name in LEARNING else unread,
        embedding_model="hashed-ngrams" if embedded else "none",
        embedding_cache=str(tmp_path),
    )
    assert type(found).__name__ == PREDICTORS[name]
    assert found.predict(IDS[:3]).mean.shape == (3,)
    assert any(tmp_path.rglob("*")) == embedded


@pytest.mark.parametrize("name", LEARNING)
def test_everything_known_reaches_the_predictors_that_learn(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    monkeypatch.setattr(prediction, PREDICTORS[name], lambda *args, **kwargs: given.append((args, kwargs)))
    side = {"rate": np.linspace(0, 1, 12)}
    build_predictor(name, IDS, texts, embedding_cache=str(tmp_path), side_information=side)
    build_predictor(name, IDS, texts, embedding_model="hashed-ngrams", embedding_cache=str(tmp_path))
    (plain, first), (embedded, second) = given
    assert plain == (None,) and first == {"prompt_ids": IDS, "texts": texts(), "side_information": side}
    assert len(embedded[0]) == 12 and second["side_information"] is None


@pytest.mark.parametrize("name", TAKES_NEW_PROMPTS)
def test_what_takes_new_prompts_needs_none(name: str) -> None:
    assert predictor_class(name)().predict(["never seen"]).mean.shape == (1,)


@pytest.mark.parametrize("prefix", ["", "viprl."])
@pytest.mark.parametrize(
    ("name", "side", "says"),
    [
        ("oracle", [], "{}predictor must be one of .*'ridge'.*but got 'oracle'"),
        ("ridge", [], "{}predictor='ridge' needs embeddings, but got {}embedding_model='none'"),
        ("last_rate", ["rate"], "{}side_information is read by .*alone, but got {}predictor='last_rate'"),
    ],
)
def test_refusals_name_the_options_as_the_user_does(prefix: str, name: str, side: list[str], says: str) -> None:
    pattern = "^" + says.format(prefix, prefix)
    with pytest.raises(ConfigurationError, match=pattern):
        check_predictor(name, embedding_model="none", side_information=side, prefix=prefix)
    with pytest.raises(ConfigurationError, match=pattern):
        build_predictor(name, IDS, texts, side_information=dict.fromkeys(side, np.zeros(12)), prefix=prefix)
