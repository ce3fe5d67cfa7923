"""With a policy of equal groups the adaptive trainers are TRL's trainers, to the last bit."""

from __future__ import annotations

import pytest

pytest.importorskip("trl")
import tiny
import torch
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl_runs import KINDS, make, parameters

from viprl import Uniform

VARIANTS = {
    "plain": {},
    "accumulated": {"per_device_train_batch_size": 6, "gradient_accumulation_steps": 4},
    "window": {"per_device_train_batch_size": 12, "steps_per_generation": 2, "num_iterations": 2},
}


def stock(kind, folder, **options):
    which, extra = KINDS[kind]
    config, trainer = {"grpo": (GRPOConfig, GRPOTrainer), "rloo": (RLOOConfig, RLOOTrainer)}[which]
    return trainer(
        model=tiny.model(),
        reward_funcs=tiny.reward,
        args=config(**tiny.arguments(folder, **extra, **options)),
        train_dataset=tiny.dataset(),
        processing_class=tiny.tokenizer(),
    )


QUICK = [("dr_grpo", "accumulated"), ("grpo", "plain"), ("rloo", "window")]


@pytest.mark.parametrize(
    ("kind", "variant"),
    [
        pytest.param(kind, variant, marks=() if (kind, variant) in QUICK else pytest.mark.slow)
        for kind in ("dr_grpo", "grpo", "rloo")
        for variant in VARIANTS
    ],
)
def test_parameters_equal_stock_trl(kind, variant, tmp_path):
    options = {"max_steps": 5, **VARIANTS[variant]}
    theirs = stock(kind, tmp_path / "stock", **options)
    start = parameters(theirs)
    theirs.train()
    ours = make(kind, tmp_path / "ours", policy=Uniform(), **options)
    ours.train()
    assert torch.equal(parameters(ours), parameters(theirs))
    assert not torch.equal(parameters(ours), start)
    same = ("reward", "frac_reward_zero_std", "rewards/reward/mean", "entropy", "num_tokens", "loss")
    for log, reference in zip(ours.state.log_history, theirs.state.log_history, strict=True):
        for key in (k for k in same if k in reference):
            assert log[key] == pytest.approx(reference[key], abs=1e-6), key
        for key in (k for k in ("reward_std", "rewards/reward/std") if k in reference):
            assert log[key] == pytest.approx(reference[key], abs=1e-5), key


def test_evaluation_is_untouched(tmp_path):
    """Same evaluation numbers as stock TRL from the same random state, and no news for the predictor."""
    options = {"max_steps": 1, "eval_strategy": "no", "per_device_eval_batch_size": 8}
    metrics = []
    for build in (stock, make):
        given = {"policy": Uniform()} if build is make else {}
        trainer = build("dr_grpo", tmp_path, **options, **given)
        trainer.train()
        torch.manual_seed(5)
        found = trainer.evaluate(tiny.dataset(8, seed=9))
        metrics.append({k: v for k, v in found.items() if "runtime" not in k and "per_second" not in k})
    assert metrics[0] == metrics[1]
    assert trainer.allocator.step == 1
