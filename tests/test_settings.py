"""AllocationSettings: every rule once, and the table in the documents."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.refusals import REFUSED

from viprl import AllocationSettings
from viprl.errors import ConfigurationError
from viprl.settings import settings_fields, settings_of, settings_table

DOCS = Path(__file__).resolve().parents[1] / "docs" / "settings.md"


@pytest.mark.parametrize("given, words", REFUSED.values(), ids=list(REFUSED))
def test_contradictions_are_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=r".") as refused:
        AllocationSettings(**given)  # type: ignore[arg-type]
    assert words in str(refused.value)


def test_uniform_runs_with_any_reward() -> None:
    for estimator in ("rloo", "dr_grpo", "grpo"):
        assert AllocationSettings(predictor="reward_variance", estimator=estimator, policy="uniform").real_rewards


def test_values_of_another_type_are_refused() -> None:
    for given in ({"initial_discount": "half"}, {"side_information": 5}, {"success_reward": ["accuracy"]}):
        with pytest.raises(ConfigurationError):
            AllocationSettings(**given)


def test_success_reward_is_a_name_or_a_number() -> None:
    named, threshold = AllocationSettings(success_reward="accuracy"), AllocationSettings(success_reward="1")
    assert (named.success_function, named.success_at) == ("accuracy", None)
    assert (threshold.success_function, threshold.success_at) == (None, 1.0)
    graded = AllocationSettings(success_reward=" accuracy >= 0.5")
    assert (graded.success_function, graded.success_at, graded.success_threshold) == ("accuracy", None, 0.5)
    assert AllocationSettings(success_reward=">=2").success_at == 2.0
    assert AllocationSettings().success_at is None and AllocationSettings().success_function is None


@pytest.mark.parametrize(
    "prompts, budget, bounds", [(32, 256, (3, 32)), (3, 8, (2, 11)), (8, 8, (1, 4)), (30, 80, (2, 11)), (1, 5, (3, 20))]
)
def test_bounds_follow_the_mean(prompts: int, budget: int, bounds: tuple[int, int]) -> None:
    found = AllocationSettings().for_step(prompts, budget)
    assert (found.min_group_size, found.max_group_size, found.budget) == (*bounds, budget)


@pytest.mark.parametrize(
    "given, prompts, budget",
    [
        ({"min_group_size": 9}, 32, 256),
        ({"max_group_size": 7}, 32, 256),
        ({"budget": 128}, 32, 256),
        ({"min_group_size": 64}, 32, 256),
    ],
)
def test_steps_that_do_not_fit_are_refused(given: dict[str, int], prompts: int, budget: int) -> None:
    with pytest.raises(ConfigurationError, match="but got"):
        AllocationSettings(**given).for_step(prompts, budget)  # type: ignore[arg-type]


def test_settings_of_any_holder() -> None:
    class Holder:
        predictor, unrelated = "beta", 3

    assert settings_of(Holder(), estimator="grpo") == AllocationSettings(predictor="beta", estimator="grpo")
    assert settings_of({"policy": "uniform", "else": 1}) == AllocationSettings(policy="uniform")


def test_every_setting_is_explained_and_the_table_is_the_documents() -> None:
    assert all(item.metadata["help"].strip() for item in settings_fields())
    assert settings_table() in DOCS.read_text(encoding="utf-8")
