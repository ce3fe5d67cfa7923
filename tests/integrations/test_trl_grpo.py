"""TRL's default, advantages over the group's standard deviation, is allocated and not held at uniform groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("trl")
import tiny

from viprl.integrations.trl import AdaptiveGRPOConfig, AdaptiveGRPOTrainer

RATES = (0.0, 0.0, 0.5, 0.1)  # of the data set's prompts, in turn


@pytest.mark.parametrize("predictor", ["discounted_beta", "reward_variance"])
def test_the_policys_groups_are_used(predictor: str, tmp_path: Any) -> None:
    data = tiny.dataset()
    rates = {prompt: RATES[i % len(RATES)] for i, prompt in enumerate(data["prompt"])}
    rng = np.random.default_rng(0)
    noise = 0.0 if predictor == "discounted_beta" else 0.01  # dense rewards, or zeros and ones

    def reward(prompts: list[str], **_: Any) -> list[float]:
        return [float(rng.random() < rates[prompt]) + noise * rng.random() for prompt in prompts]

    trainer = AdaptiveGRPOTrainer(
        model=tiny.model(),
        args=AdaptiveGRPOConfig(**tiny.arguments(tmp_path, predictor=predictor, max_steps=24, num_generations=4)),
        reward_funcs=reward,
        train_dataset=data,
        processing_class=tiny.tokenizer(),
    )
    assert trainer.allocator.model.name == "grpo", "the estimator of TRL's default scale_rewards"
    trainer.train()
    log = [row for row in trainer.state.log_history if "viprl/guard" in row]
    held = np.array([row["viprl/guard"] for row in log])
    ratios = np.array([row["viprl/realised_variance_ratio"] for row in log])
    assert len(log) == 24 and held[4:].mean() < 0.2, held
    assert ratios[-8:].mean() < 0.95, ratios
    assert np.mean([row["viprl/group_size_max"] for row in log[4:]]) > 4
