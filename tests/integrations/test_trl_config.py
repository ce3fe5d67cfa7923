"""Configs, refusals, and the contract with TRL."""

from __future__ import annotations

import inspect
import re

import pytest

pytest.importorskip("trl")
import tiny
from tests.refusals import REFUSED
from transformers import HfArgumentParser
from trl import GRPOConfig, GRPOTrainer, RLOOTrainer
from trl_runs import Fixed, make

from viprl import DiscountedBeta, RolloutAllocator, Uniform
from viprl.errors import ConfigurationError
from viprl.integrations.trl import AdaptiveGRPOConfig, AdaptiveGRPOTrainer, AdaptiveRLOOConfig, contract
from viprl.integrations.trl.weights import LOSSES


class TestDefaults:
    def test_bounds_budget_and_estimators(self, tmp_path):
        config = AdaptiveGRPOConfig(**tiny.arguments(tmp_path, num_generations=8))
        assert (config.min_group_size, config.max_group_size, config.budget) == (3, 32, 24)
        assert config.prompt_weighting == "equal" and config.policy == "vip" and config.predictor == "calibrated"
        small = AdaptiveRLOOConfig(**tiny.arguments(tmp_path, num_generations=2))
        assert (small.min_group_size, small.max_group_size, small.estimator) == (2, 8, "rloo")

    @pytest.mark.parametrize(
        ("scale", "estimator"), [("group", "grpo"), (True, "grpo"), ("none", "dr_grpo"), (False, "dr_grpo")]
    )
    def test_estimator_follows_scale_rewards(self, scale, estimator, tmp_path):
        assert AdaptiveGRPOConfig(**tiny.arguments(tmp_path, scale_rewards=scale)).estimator == estimator

    def test_model_and_bounds_reach_the_allocator(self, tmp_path):
        for kind, model in (("dr_grpo", "dr_grpo"), ("grpo", "grpo"), ("rloo_in_grpo", "rloo"), ("rloo", "rloo")):
            allocator = make(kind, tmp_path, max_group_size=12, variance="formula").allocator
            assert (allocator.model.name, allocator.min_group_size, allocator.max_group_size) == (model, 2, 12)

    @pytest.mark.parametrize("config", [AdaptiveGRPOConfig, AdaptiveRLOOConfig])
    def test_parses_like_trls(self, config, tmp_path):
        line = f"--output_dir {tmp_path} --num_generations 4 --per_device_train_batch_size 8 --use_cpu --bf16 false"
        line += " --min_group_size 2 --prompt_weighting rollout --side_information rate other --guard false"
        (parsed,) = HfArgumentParser(config).parse_args_into_dataclasses(line.split())
        assert parsed.side_information == ["rate", "other"] and parsed.guard is False and parsed.max_group_size == 16
        assert parsed.to_dict()["prompt_weighting"] == "rollout"


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"estimator": "ppo"}, "estimator"),
            ({"prompt_weighting": "none"}, "prompt_weighting"),
            ({"predictor": "oracle"}, "predictor"),
            ({"history_format": "csv"}, "history_format"),
            ({"reward_values": [1.0, 0.0]}, "reward_values"),
            ({"max_group_size": 3}, "max_group_size=3"),
            ({"estimator": "rloo", "scale_rewards": "group"}, "needs scale_rewards='none'"),
            ({"estimator": "grpo", "scale_rewards": "none"}, "needs scale_rewards='group'"),
        ],
    )
    def test_config(self, options, words, tmp_path):
        with pytest.raises(ConfigurationError, match=words):
            AdaptiveGRPOConfig(**tiny.arguments(tmp_path, **options))

    @pytest.mark.parametrize(
        ("kind", "options", "words"),
        [
            ("grpo", {"scale_rewards": "batch"}, "scale_rewards"),
            ("grpo", {"multi_objective_aggregation": "normalize_then_sum"}, "sum_then_normalize"),
            ("rloo", {"normalize_advantages": True}, "normalize_advantages"),
            ("rloo", {"estimator": "dr_grpo"}, "leave-one-out"),
            ("rloo", {"prompt_id_column": "nope"}, "columns:"),
            ("rloo", {"predictor": "gaussian_process"}, "needs embeddings"),
            ("rloo", {"policy": None, "predictor": "last_rate", "train_dataset": None}, "train_dataset"),
        ],
    )
    def test_trainer(self, kind, options, words, tmp_path):
        if options.get("predictor"):
            options = {**options}
            name = options.pop("predictor")
            with pytest.raises(ConfigurationError, match=words):
                self._named(kind, name, tmp_path, options)
        else:
            with pytest.raises(ConfigurationError, match=words):
                make(kind, tmp_path, **options)

    def _named(self, kind, predictor, tmp_path, options):
        from viprl.integrations.trl import AdaptiveRLOOTrainer

        config = AdaptiveRLOOConfig(**tiny.arguments(tmp_path, predictor=predictor))
        given = {"train_dataset": tiny.dataset(), **options}
        given.pop("policy", None)
        AdaptiveRLOOTrainer(tiny.model(), tiny.reward, config, processing_class=tiny.tokenizer(), **given)

    def test_every_contradiction_of_the_settings_is_refused_in_their_words(self, tmp_path):
        for given, words in REFUSED.values():
            scale = "group" if given.get("estimator") == "grpo" else "none"
            with pytest.raises(ConfigurationError) as refused:
                AdaptiveGRPOConfig(**tiny.arguments(tmp_path, scale_rewards=scale, **given))
            assert words in str(refused.value)

    def test_unknown_policy(self, tmp_path):
        with pytest.raises(ConfigurationError, match=r"policy.*vip, uniform.*'dice'"):
            AdaptiveGRPOConfig(**tiny.arguments(tmp_path, policy="dice"))

    def test_stock_config(self, tmp_path):
        with pytest.raises(ConfigurationError, match="AdaptiveGRPOConfig"):
            AdaptiveGRPOTrainer(tiny.model(), tiny.reward, GRPOConfig(**tiny.arguments(tmp_path)), tiny.dataset())

    def test_allocator_and_predictor(self, tmp_path):
        from viprl import RLOO

        allocator = RolloutAllocator(DiscountedBeta(), RLOO())
        with pytest.raises(ConfigurationError, match="not both"):
            make("rloo", tmp_path, allocator=allocator, policy=Uniform())


@pytest.mark.parametrize("policy", ["vip", "uniform", "inverse_accuracy", "inverse_variance", "knapsack_rl"])
def test_policies_by_name(policy, tmp_path):
    config = AdaptiveGRPOConfig(**tiny.arguments(tmp_path, policy=policy, scale_rewards="none", loss_type="dr_grpo"))
    trainer = AdaptiveGRPOTrainer(tiny.model(), tiny.reward, config, tiny.dataset(), processing_class=tiny.tokenizer())
    trainer.train()
    assert trainer.last_step.group_sizes.sum() == 24 and trainer.last_step.group_sizes.min() >= 3


def test_default_predictor_learns_the_data_sets_prompts(tmp_path):
    config = AdaptiveGRPOConfig(**tiny.arguments(tmp_path, max_steps=4, prompt_id_column="key"))
    trainer = AdaptiveGRPOTrainer(tiny.model(), tiny.reward, config, tiny.dataset(), processing_class=tiny.tokenizer())
    trainer.train()
    assert set(trainer.last_step.prompt_ids) <= {f"p{i}" for i in range(16)}
    cold = trainer.allocator.predict([f"p{i}" for i in range(16)]).cold
    assert not cold[[int(i[1:]) for i in trainer.last_step.prompt_ids]].any() and cold.sum() <= 4


def test_side_information_and_embeddings_reach_the_predictor(tmp_path, monkeypatch):
    import numpy as np

    from viprl import embeddings, prediction

    given = {}

    class Spy(DiscountedBeta):
        def __init__(self, embeddings, **kwargs):
            given.update(kwargs, vectors=embeddings)
            super().__init__(kwargs["prompt_ids"])

    monkeypatch.setattr(prediction, "CalibratedPredictor", Spy)
    monkeypatch.setattr(
        embeddings,
        "embed",
        lambda texts, **kw: (given.update(kw, texts=texts), np.ones((len(texts), 2)))[1],
        raising=False,
    )
    data = tiny.dataset(8).add_column("rate", [0.1, None, *range(6)])
    data = data.select([0, 1, 1, 2, 3, 4, 5, 6, 7])  # a prompt twice: one id
    make(
        "rloo",
        tmp_path,
        train_dataset=data,
        prompt_id_column="key",
        side_information=["rate"],
        embedding_model="packaged",
    )
    assert given["prompt_ids"] == [f"p{i}" for i in range(8)] and given["model"] == "packaged"
    assert given["texts"] == list(tiny.dataset(8)["prompt"]) and given["vectors"].shape == (8, 2)
    np.testing.assert_allclose(given["side_information"]["rate"], [0.1, np.nan, *range(6)])


class TestContract:
    @pytest.mark.parametrize("trainer", [GRPOTrainer, RLOOTrainer])
    def test_holds(self, trainer):
        """Fails when a TRL or transformers release moves something that the trainers override or read."""
        assert contract.violations(trainer) == []

    @pytest.mark.parametrize(
        "change",
        [
            {"_log_completion_extra": None},
            {"_calculate_rewards": lambda self, inputs: None},
            {"_generate": lambda self, prompts, sampling: None},
            {"_prepare_inputs": lambda self, generation_batch: generation_batch},
        ],
    )
    def test_a_move_is_noticed(self, change):
        moved = type("GRPOTrainer", (GRPOTrainer,), change)
        assert contract.violations(moved)
        with pytest.raises(ConfigurationError, match=r"trl >=1\.16"):
            contract.check(moved)

    def test_every_loss_of_trl_is_in_the_table(self):
        source = inspect.getsource(GRPOTrainer._compute_loss)
        named = {name for name in LOSSES if name != "rloo"}
        found = set(
            re.findall(r'"([a-z_]+)"', " ".join(re.findall(r"self\.loss_type (?:==|in) (\[?[^\n\]:]*)", source)))
        )
        assert found == named

    def test_overrides_exist_in_trl(self):
        """Everything the mixins define under TRL's names is still there to be overridden."""
        from viprl.integrations.trl.mixin import AdaptiveRolloutMixin
        from viprl.integrations.trl.resumable import ResumableMixin

        ours = {"_gather_prompts", "_decide", "_collect_rewards", "_advantages", "_penalty", "_learn", "_on_main"}
        ours |= {
            "_is_parents_estimator",
            "_generations",
            "_repeats",
            "_row",
            "_candidates_state",
            "_restore_candidates",
            "_gathered",
            "_id_or_none",
            "_restore",
        }
        ours |= {"_choose_success", "_set_up", "_build", "_successes"}
        ours |= {"_window_extras", "_restore_window_extras"}
        for mixin in (AdaptiveRolloutMixin, ResumableMixin):
            for name, value in vars(mixin).items():
                if inspect.isfunction(value) and name != "__init__":
                    assert hasattr(GRPOTrainer, name) != (name in ours), name


def test_fixed_policy_is_uneven():
    assert Fixed(1, 2).allocate(None).tolist() == [1, 2]
