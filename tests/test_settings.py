"""AllocationSettings: every rule once, and the table in the documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from viprl import AllocationSettings
from viprl.errors import ConfigurationError
from viprl.settings import settings_fields, settings_of, settings_table

DOCS = Path(__file__).resolve().parents[1] / "docs" / "settings.md"

# settings that contradict themselves -> words of the refusal; every entrance must say the same
REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "unknown predictor": ({"predictor": "betta"}, "nearest: 'beta'"),
    "unknown policy": ({"policy": "nonsense"}, "`policy` must be one of vip"),
    "unknown variance": ({"variance": "lerned"}, "nearest: 'learned'"),
    "unknown estimator": ({"estimator": "ppo"}, "`estimator` must be one of rloo"),
    "unknown weighting": ({"prompt_weighting": "none"}, "`prompt_weighting` must be one of"),
    "learned with grpo": ({"variance": "learned", "estimator": "grpo"}, "variance='learned' is derived for"),
    "learned with real rewards": (
        {"variance": "learned", "predictor": "reward_variance", "estimator": "rloo"},
        "variance='learned' tells success from failure",
    ),
    "learned with relaxed": ({"variance": "learned", "policy": "relaxed"}, "policy='relaxed' cannot solve"),
    "learned with a success of its own": ({"variance": "learned", "success_reward": "accuracy"}, "takes the success"),
    "real rewards with a success": ({"predictor": "reward_variance", "success_reward": "accuracy"}, "knows no success"),
    "bounds": ({"min_group_size": 9, "max_group_size": 8}, "min_group_size <= max_group_size must hold"),
    "bound of zero": ({"min_group_size": 0}, "`min_group_size` must be a positive integer"),
    "bound not whole": ({"max_group_size": 8.5}, "`max_group_size` must be a positive integer"),
    "bound true": ({"max_group_size": True}, "`max_group_size` must be a positive integer"),
    "budget": ({"budget": -1}, "`budget` must be a positive integer"),
    "embeddings missing": ({"predictor": "gp"}, "needs embeddings"),
    "embeddings not read": ({"predictor": "beta", "embedding_model": "packaged"}, "`embedding_model` is read by"),
    "side information not read": (
        {"predictor": "last_rate", "side_information": ["difficulty"]},
        "`side_information` is read by",
    ),
    "reward values reversed": ({"reward_values": [1, 0]}, "ascending order"),
    "one reward value": ({"reward_values": [1]}, "ascending order"),
    "reward values not numbers": ({"reward_values": ["a", "b"]}, "ascending order"),
    "reward values not finite": ({"reward_values": [0, float("inf")]}, "ascending order"),
    "success said twice": ({"success_reward": "0.5", "reward_values": [0, 1]}, "say the same in two ways"),
    "success not finite": ({"success_reward": "nan"}, "a finite number"),
    "success empty": ({"success_reward": " "}, "the name of a reward function"),
    "rates without rollouts": ({"initial_rates": "rate"}, "go together"),
    "discount": (
        {"initial_rates": "rate", "initial_rollouts": 8, "initial_discount": 1.5},
        "0 < initial_discount <= 1",
    ),
    "guard": ({"guard": "yes"}, "`guard` must be true or false"),
}


@pytest.mark.parametrize("given, words", REFUSED.values(), ids=list(REFUSED))
def test_contradictions_are_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=r".") as refused:
        AllocationSettings(**given)  # type: ignore[arg-type]
    assert words in str(refused.value)


def test_uniform_runs_with_any_reward() -> None:
    for estimator in ("rloo", "dr_grpo", "grpo"):
        assert AllocationSettings(predictor="reward_variance", estimator=estimator, policy="uniform").real_rewards


def test_success_reward_is_a_name_or_a_number() -> None:
    named, threshold = AllocationSettings(success_reward="accuracy"), AllocationSettings(success_reward="1")
    assert (named.success_function, named.success_at) == ("accuracy", None)
    assert (threshold.success_function, threshold.success_at) == (None, 1.0)
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
