"""From names and prompts to an allocator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import viprl
from viprl import AllocationSettings, PromptSet, build_allocator, registry
from viprl.build import build_predictor, build_variance
from viprl.errors import ConfigurationError, InvalidInputError

IDS = [f"q{i}" for i in range(12)]
PROMPTS = PromptSet(IDS, texts=[f"What is {i} + {i * 7}?" for i in range(12)])


@pytest.mark.parametrize("predictor", registry.names("predictor"))
@pytest.mark.parametrize("policy", registry.names("policy"))
@pytest.mark.parametrize("estimator", registry.names("estimator"))
def test_every_combination_runs_or_is_refused(predictor: str, policy: str, estimator: str) -> None:
    needs = registry.find("predictor", predictor).needs
    chosen: dict[str, Any] = {"predictor": predictor, "policy": policy, "estimator": estimator, "variance": "formula"}
    chosen["embedding_model"] = "hashed-ngrams" if needs else "none"
    if estimator == "maxrl" and (policy == "relaxed" or predictor == "reward_variance"):
        with pytest.raises(ConfigurationError, match="maxrl"):
            AllocationSettings(**chosen)
        return
    settings = AllocationSettings(**chosen)
    allocator = build_allocator(PROMPTS, settings)
    rng = np.random.default_rng(0)
    for _ in range(3):
        plan = allocator.allocate(IDS, 96)
        allocator.observe(plan, [rng.integers(0, 2, n).astype(float) for _, n in plan])
    assert allocator.step == 3 and plan.group_sizes.sum() == 96


def test_prompts_must_be_a_prompt_set() -> None:
    with pytest.raises(TypeError, match="takes a viprl.PromptSet"):
        build_allocator(IDS)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a sequence of prompt ids"):
        PromptSet("abc")
    with pytest.raises(InvalidInputError, match="must differ"):
        PromptSet(["a", "a"])
    with pytest.raises(InvalidInputError, match="one entry per prompt"):
        PromptSet(["a", "b"], texts=["x"])
    assert "2 prompts" in repr(PromptSet(["a", "b"]))


@pytest.mark.parametrize("predictor", ["calibrated", "beta", "reward_variance", "last_rate"])
def test_prompts_may_become_known_as_they_come(predictor: str) -> None:
    allocator = build_allocator(None, AllocationSettings(predictor=predictor))
    assert allocator.allocate(["new", "newer"], 16).group_sizes.sum() == 16


def test_a_stream_refuses_what_needs_a_data_set() -> None:
    for given in ({"side_information": ["x"]}, {"predictor": "gp", "embedding_model": "packaged"}):
        with pytest.raises(ConfigurationError, match="as they come"):
            build_predictor(None, AllocationSettings(**given))  # type: ignore[arg-type]


def test_auto_is_learned_where_it_can_be() -> None:
    learned = build_variance(AllocationSettings(), not_learnable=None)
    assert isinstance(learned, viprl.OutcomeMoments)
    for settings, reason in (
        (AllocationSettings(), "gives no norms"),
        (AllocationSettings(estimator="grpo"), None),
        (AllocationSettings(success_reward="1"), None),
    ):
        assert not isinstance(build_variance(settings, not_learnable=reason), viprl.OutcomeMoments)
    assert isinstance(build_variance(AllocationSettings(variance="learned")), viprl.OutcomeMoments)


def test_initial_rates_are_where_the_prompts_start() -> None:
    rates = np.array([0.0, 1.0] * 5 + [np.nan, 0.5])
    prompts = PromptSet(IDS, initial_rates=rates)
    settings = AllocationSettings(initial_rates="rate", initial_rollouts=64)
    told = build_predictor(prompts, settings).predict(IDS).mean
    assert told[:10:2].max() < 0.1 and told[1:10:2].min() > 0.9
    weak = build_predictor(prompts, settings.replace(initial_rollouts=2)).predict(IDS).mean
    assert weak[1] < told[1]
    with pytest.raises(InvalidInputError, match=r"\[0, 1\]"):
        PromptSet(IDS, initial_rates=rates * 2)
    with pytest.raises(ConfigurationError, match="initial_rollouts"):
        build_predictor(prompts, AllocationSettings())


def test_a_named_success_is_the_trainers_to_find() -> None:
    with pytest.raises(ConfigurationError, match="must be a number"):
        build_allocator(PROMPTS, AllocationSettings(success_reward="accuracy"))
