"""The commonest script: TRL's defaults, accuracy and format as two reward functions, chat prompts, LoRA."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("trl")
pytest.importorskip("peft")
import peft
import tiny
from datasets import Dataset

from viprl.errors import ConfigurationError
from viprl.integrations.trl import AdaptiveGRPOConfig, AdaptiveGRPOTrainer

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
RATES = (0.0, 0.0, 0.03, 0.3, 0.5, 0.9)  # accuracy of the prompts, in turn
LAYERS = ["q_proj", "v_proj"]


def chats(count: int = 24) -> Dataset:
    words = [word.rstrip(">") for word in tiny.words(count)]
    return Dataset.from_dict(
        {
            "prompt": [[{"role": "user", "content": word}] for word in words],
            "rate": [RATES[i % len(RATES)] for i in range(count)],
        }
    )


class Rewards:
    """An accuracy that is binary and a format reward that is not; the draws are a stream that can be wound on."""

    def __init__(self, drawn: int = 0) -> None:
        self.rng = np.random.default_rng(0)
        self.rng.random(drawn)

    def functions(self) -> list[Any]:
        def accuracy_reward(completions: list[Any], rate: list[float], **_: Any) -> list[float]:
            return [float(self.rng.random() < r) for r in rate]

        def format_reward(completions: list[Any], **_: Any) -> list[float]:
            return [0.1 * min(len(c[0]["content"]), 4) for c in completions]

        return [accuracy_reward, format_reward]


def trainer(folder: Path, rewards: Rewards, *, base: Path, **options: Any) -> AdaptiveGRPOTrainer:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = TEMPLATE
    given = {"max_steps": 50, "per_device_train_batch_size": 24, "num_generations": 4, "learning_rate": 1e-4, **options}
    return AdaptiveGRPOTrainer(
        model=str(base),
        reward_funcs=rewards.functions(),
        args=AdaptiveGRPOConfig(**tiny.arguments(folder, **given)),
        train_dataset=chats(),
        processing_class=tokenizer,
        peft_config=peft.LoraConfig(r=4, lora_alpha=8, target_modules=LAYERS, task_type="CAUSAL_LM"),
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    tiny.model().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def trained(base: Path, tmp_path_factory: pytest.TempPathFactory) -> AdaptiveGRPOTrainer:
    run = trainer(
        tmp_path_factory.mktemp("run"),
        Rewards(),
        base=base,
        save_strategy="steps",
        save_steps=40,
        history_format="jsonl",
    )
    run.train()
    return run


def test_it_trains_adaptively(trained: AdaptiveGRPOTrainer) -> None:
    assert trained.args.scale_rewards == "group" and trained.args.estimator == "grpo"
    assert trained.args.success_reward == "accuracy_reward", "the function whose name says so"
    allocator = trained.allocator
    assert allocator.step == 50 and allocator.policy_steps > 40
    sizes = np.array([row["viprl/group_size_max"] for row in trained.state.log_history if "viprl/guard" in row])
    assert (sizes[5:] > 4).mean() > 0.8
    by_prompt = allocator.predict([trained._id_rule.id_of(row) for row in trained.train_dataset]).mean
    rates = np.array(trained.train_dataset["rate"])
    assert np.corrcoef(by_prompt, rates)[0, 1] > 0.8, "the success is learnt, not the sum"


def test_advantages_are_of_the_sum(trained: AdaptiveGRPOTrainer) -> None:
    step = trained.last_step
    assert set(np.unique(step.successes)) <= {0.0, 1.0} and not np.array_equal(step.rewards, step.successes)
    for q, n in enumerate(step.group_sizes):
        own = step.rewards[step.rows == q]
        weight = len(step.rows) / len(step.group_sizes) / n
        spread = own.std(ddof=1)
        expected = 0 * own if spread < 1e-6 else weight * (own - own.mean()) / (spread + 1e-4)
        np.testing.assert_allclose(step.advantages[step.rows == q], expected, atol=1e-6)


def test_its_history_can_be_replayed(trained: AdaptiveGRPOTrainer, tmp_path: Path) -> None:
    from viprl.cli import main

    history = Path(trained.args.output_dir) / "history"
    command = ["replay", str(history), "--rules", "uniform,vip:beta", "--out", str(tmp_path / "r"), "--quiet"]
    assert main([*command, "--resamples", "50", "--jobs", "1"]) == 0


def test_it_resumes(trained: AdaptiveGRPOTrainer, base: Path, tmp_path: Path) -> None:
    shutil.copytree(Path(trained.args.output_dir) / "checkpoint-40", tmp_path / "run" / "checkpoint-40")
    resumed = trainer(tmp_path / "run", Rewards(40 * 24), base=base, history_format="jsonl")
    resumed.train(resume_from_checkpoint=True)
    assert resumed.allocator.step == 50
    assert resumed.last_step.prompt_ids == trained.last_step.prompt_ids
    np.testing.assert_array_equal(resumed.last_step.group_sizes, trained.last_step.group_sizes)
    assert resumed.allocator.policy_steps == trained.allocator.policy_steps


def test_functions_whose_names_say_nothing_are_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    def first(completions: list[Any], **_: Any) -> list[float]:
        return [0.0] * len(completions)

    def second(completions: list[Any], **_: Any) -> list[float]:
        return [0.0] * len(completions)

    for options, words in (
        ({}, "success_reward must say|`success_reward` must say"),
        ({"success_reward": "third"}, "'first', 'second'"),
    ):
        config = AdaptiveGRPOConfig(**tiny.arguments(tmp_path, **options))
        with pytest.raises(ConfigurationError, match=words):
            AdaptiveGRPOTrainer(str(tmp_path / "no-such-model"), [first, second], config, chats())


@pytest.mark.parametrize(
    "options", [{"success_reward": "1.1"}, {"policy": "uniform"}, {"predictor": "reward_variance"}]
)
@pytest.mark.parametrize("scale", ["group", "none"])
def test_dense_rewards_have_ways(options: dict[str, str], scale: str, base: Path, tmp_path: Path) -> None:
    run = trainer(tmp_path, Rewards(), base=base, max_steps=3, scale_rewards=scale, **options)
    run.train()
    assert run.allocator.step == 3
    if "success_reward" in options:
        threshold = run.last_step.rewards >= 1.1 - 1e-6
        n = [int(threshold[run.last_step.rows == q].sum()) for q in range(6)]
        assert [row["successes"] for row in run.allocator.history_rows()] == n


def test_a_graded_reward_succeeds_from_its_threshold_on(base: Path, tmp_path: Path) -> None:
    run = trainer(tmp_path, Rewards(), base=base, max_steps=2, success_reward="format_reward>=0.4")
    run.train()
    step = run.last_step
    assert step.successes is not None and set(step.successes) <= {0.0, 1.0} and step.successes.any()
    n = [int(step.successes[step.rows == q].sum()) for q in range(6)]
    assert [row["successes"] for row in run.allocator.history_rows()] == n


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["accuracy_reward", "format_reward"], "accuracy_reward"),
        (["MathAccuracyReward", "LengthReward"], "MathAccuracyReward"),
        (["correctness_reward_func", "xmlcount_reward_func"], "correctness_reward_func"),
        (["reward_success", "incorrect_penalty"], "reward_success"),
        (["incorrect_penalty", "format"], None),
        (["inaccuracy_reward", "format"], None),
        (["not_solved", "format"], None),
        (["accuracy_a", "accuracy_b"], None),
    ],
)
def test_which_name_says_success(names: list[str], found: str | None) -> None:
    from viprl import AllocationSettings
    from viprl.integrations.trl.setup import success_of

    if found is not None:
        assert success_of(AllocationSettings(), names) == found
        return
    with pytest.raises(ConfigurationError, match="must say what success is"):
        success_of(AllocationSettings(), names)
