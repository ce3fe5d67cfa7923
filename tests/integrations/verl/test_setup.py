"""Prompt ids, side information and predictors from a data set's rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from viprl import AllocationSettings, registry
from viprl.errors import ConfigurationError, InvalidInputError
from viprl.integrations.verl.checks import check_config
from viprl.integrations.verl.setup import allocator_of_run, read_prompts
from viprl.prompts import NamedRows


def read(rows: list[dict[str, Any]], **settings: Any) -> NamedRows:
    return read_prompts(rows, prompt_column="prompt", settings=AllocationSettings(**settings))


def row(text: str, index: int | None = None, **extra: Any) -> dict[str, Any]:
    extra_info = {**({} if index is None else {"index": index}), **extra}
    return {"data_source": "s", "prompt": [{"role": "user", "content": text}], "extra_info": extra_info}


def test_ids_of_the_data_set_where_they_are_unique() -> None:
    prompts = read([row("a", 3), row("b", 4), row("a", 3)])
    assert prompts.row_ids == ["s/3", "s/4", "s/3"]
    assert prompts.prompts.ids == ["s/3", "s/4"]
    assert prompts.prompts.read_texts() == ["a", "b"]


def test_a_missing_index_is_not_zero() -> None:
    # verl fills `index` with 0 where extra_info has none; all prompts would share one id
    prompts = read([row("a"), row("b")])
    assert prompts.rule.kind == "content"
    assert len(set(prompts.row_ids)) == 2


def test_equal_indices_of_different_prompts_are_no_ids() -> None:
    prompts = read([row("a", 0), row("b", 0)])
    assert prompts.rule.kind == "content"
    assert prompts.row_ids[0] == read([row("a")]).row_ids[0]


def test_prompt_id_goes_before_index() -> None:
    prompts = read([row("a", 3, prompt_id="x"), row("b", 4, prompt_id="y")])
    assert prompts.row_ids == ["x", "y"]


def test_the_configured_column_may_lie_in_extra_info() -> None:
    rows = [{**row("a", 1), "name": "n1"}, row("b", 2, name="n2")]
    assert read(rows, prompt_id_column="name").row_ids == ["n1", "n2"]
    with pytest.raises(InvalidInputError, match="column 'nmae'"):
        read(rows, prompt_id_column="nmae")


def test_side_information_is_one_number_per_prompt() -> None:
    rows = [row("a", 1, rate=0.25), row("b", 2), row("a", 1, rate=0.25), {**row("c", 3), "rate": 1}]
    rates = read(rows, side_information=["rate"]).prompts.side_information["rate"]
    np.testing.assert_array_equal(rates, [0.25, np.nan, 1.0])


@pytest.mark.parametrize(("name", "says"), [("tare", "at least one row"), ("word", "must hold numbers")])
def test_side_information_must_be_there(name: str, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        read([row("a", 1, word="often")], side_information=[name])


@pytest.mark.parametrize("predictor", registry.names("predictor"))
@pytest.mark.parametrize("policy", ["vip", "uniform"])
@pytest.mark.parametrize("estimator", ["viprl_rloo", "viprl_dr_grpo", "viprl_grpo"])
def test_allocator_of_a_run(
    make_config: Callable[..., dict[str, Any]], tmp_path: Path, predictor: str, policy: str, estimator: str
) -> None:
    changes = {"viprl.predictor": predictor, "viprl.policy": policy, "algorithm.adv_estimator": estimator}
    if registry.find("predictor", predictor).needs:
        changes |= {"viprl.embedding_model": "hashed-ngrams", "viprl.embedding_cache": str(tmp_path)}
    settings = check_config(make_config(changes))
    prompts = read([row(f"question {i}", i) for i in range(20)])
    allocator = allocator_of_run(prompts.prompts, settings)
    plan = allocator.allocate(prompts.row_ids[:8], 32)
    assert plan.group_sizes.sum() == 32
    allocator.observe(plan, np.tile([0.0, 1.0], 16))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "outcome_moments_rloo"),
        ({"viprl.variance": "formula"}, "rloo"),
        ({"viprl.variance": "learned"}, "outcome_moments_rloo"),
        ({"viprl.variance": "learned", "algorithm.adv_estimator": "viprl_dr_grpo"}, "outcome_moments_dr_grpo"),
    ],
)
def test_variance_model_of_a_run(
    make_config: Callable[..., dict[str, Any]], changes: dict[str, Any], name: str
) -> None:
    prompts = read([row(f"question {i}", i) for i in range(20)])
    allocator = allocator_of_run(prompts.prompts, check_config(make_config(changes)))
    assert allocator.model.name == allocator.allocate(prompts.row_ids[:8], 32).model == name


def test_reward_values_are_the_numbers_that_rewards_travel_as(make_config: Callable[..., dict[str, Any]]) -> None:
    prompts = read([row(f"question {i}", i) for i in range(20)])
    allocator = allocator_of_run(prompts.prompts, check_config(make_config({"viprl.reward_values": [0.1, 0.9]})))
    plan = allocator.allocate(prompts.row_ids[:8], 32)
    allocator.observe(plan, np.tile(np.array([0.1, 0.9], np.float32), 16))
    assert sum(row["successes"] for row in allocator.history_rows()) == pytest.approx(16)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"viprl.policy": "best"}, "`policy` must be one of"),
        ({"viprl.predictor": "oracle"}, "`predictor` must be one of"),
        ({"viprl.predictor": "ridge"}, "needs embeddings"),
        ({"viprl.predictor": "last_rate", "viprl.side_information": ["rate"]}, "calibrated and reward_variance"),
    ],
)
def test_what_cannot_be_built(make_config: Callable[..., dict[str, Any]], changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        check_config(make_config(changes))


def test_embeddings_are_computed_once(make_config: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    changes = {"viprl.embedding_model": "hashed-ngrams", "trainer.default_local_dir": str(tmp_path)}
    settings = check_config(make_config(changes))
    prompts = read([row(f"question {i}", i) for i in range(20)])
    allocator_of_run(prompts.prompts, settings)
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "viprl_embeddings").rglob("*") if path.is_file()}
    assert written
    allocator_of_run(prompts.prompts, settings)
    assert {path: path.stat().st_mtime_ns for path in written} == written
