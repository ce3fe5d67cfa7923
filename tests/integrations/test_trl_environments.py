"""Prompts that belong to the environment: the data set has no ``prompt`` column."""

from __future__ import annotations

import pytest

pytest.importorskip("trl")
from datasets import Dataset

from viprl.errors import ConfigurationError
from viprl.integrations.trl import AdaptiveGRPOConfig, AdaptiveGRPOTrainer
from viprl.tasks.search.environment import prepare_tokenizer
from viprl.tasks.search.tiny import build_model, build_tokenizer
from viprl.tasks.search.world import FactWorld


class Owner:
    """An environment that owns its prompts: ``reset`` says them."""

    def reset(self, key, **row):
        return f"question {key}"

    def guess(self, word: str) -> str:
        """Guess a word.

        Args:
            word: the word.
        """
        return "no"


def reward(completions, key, **columns):
    return [float((len(str(c)) + int(k[1:])) % 2) for c, k in zip(completions, key, strict=True)]


def test_environment_owned_prompts(tmp_path):
    tokenizer = prepare_tokenizer(build_tokenizer(FactWorld(people=12)))
    data = Dataset.from_dict({"key": [f"p{i}" for i in range(8)]})

    def build(**more):
        args = AdaptiveGRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=16,
            num_generations=4,
            max_completion_length=8,
            max_steps=2,
            scale_rewards="none",
            loss_type="dr_grpo",
            estimator="rloo",
            beta=0.0,
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            **more,
        )
        return AdaptiveGRPOTrainer(
            build_model(tokenizer, layers=1, hidden=32),
            reward,
            args,
            data,
            processing_class=tokenizer,
            environment_factory=Owner,
        )

    with pytest.raises(ConfigurationError, match="prompt_id_column"):
        build()
    trainer = build(prompt_id_column="key")
    trainer.train()
    assert trainer.allocator.step == 2 and set(trainer.last_step.prompt_ids) <= set(data["key"])
    trainer = build(prompt_id_column="key", candidates=2)
    trainer.train()
    assert trainer.allocator.step == 2
