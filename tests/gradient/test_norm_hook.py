# ruff: noqa: E402  (optional packages are asked for first)
"""Norms read off a training step's backward pass equal exact per-rollout norms, whatever the advantages."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.gradient import models

from viprl.errors import ConfigurationError, InvalidInputError
from viprl.gradient.norm_hook import GradientNormHook


def training_pass(model, advantages, hook, rows=slice(None)):
    ids, attention, completion = (x[rows] for x in models.batch())
    hook.begin(advantages)
    sums = models.log_probabilities(model, ids, attention, completion)
    (-(torch.as_tensor(advantages, dtype=torch.float32) * sums).sum()).backward()
    return hook.collect()


@pytest.mark.parametrize("factory", [models.llama, models.qwen3, models.gpt2])
@pytest.mark.parametrize("layers", ["all", "default"])
def test_exact(factory, layers: str) -> None:
    model = factory()
    ids, attention, completion = models.batch()
    hook = GradientNormHook(model, layers=layers)
    advantages = [0.5, -0.25, 0.0, 2.0, -0.001]
    found = training_pass(model, advantages, hook)
    exact = models.exact_gradients(model, ids, attention, completion, list(hook.watched)).square().sum(1).numpy()
    assert np.isnan(found[2])
    live = [0, 1, 3, 4]
    np.testing.assert_allclose(found[live], exact[live], rtol=1e-4)


def test_parameter_gradients_are_untouched_and_passes_do_not_mix() -> None:
    model = models.llama()
    hook = GradientNormHook(model)
    first = training_pass(model, [1.0, -1.0, 0.5, 0.5, 1.0], hook)
    ids, attention, completion = models.batch()
    models.log_probabilities(model, ids, attention, completion).sum().backward()  # hook is at rest: not seen
    again = training_pass(model, [1.0, -1.0], hook, slice(0, 2))
    np.testing.assert_allclose(again, first[:2], rtol=1e-4)
    hook.close()
    plain = models.llama()
    plain_ids = models.batch()
    hooked = models.llama()
    training_pass(hooked, [1.0, 2.0, 3.0, 4.0, 5.0], GradientNormHook(hooked, layers="all"))
    (-(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]) * models.log_probabilities(plain, *plain_ids)).sum()).backward()
    for (name, a), b in zip(hooked.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)


def test_dead_batch_and_misuse() -> None:
    model = models.llama()
    hook = GradientNormHook(model)
    assert np.isnan(training_pass(model, [0.0] * 5, hook)).all()
    with pytest.raises(ConfigurationError, match="begin"):
        hook.collect()
    hook.begin([1.0, 1.0])
    with pytest.raises(ConfigurationError, match="backward pass"):
        hook.collect()
    with pytest.raises(InvalidInputError, match="finite"):
        hook.begin([float("nan")])
    with pytest.raises(InvalidInputError, match="layers must be"):
        GradientNormHook(model, layers="some")


def test_default_layers_are_few_linear_layers_spread_over_the_depth() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=10, hidden_size=8, intermediate_size=8, num_hidden_layers=9, num_attention_heads=2)
    watched = GradientNormHook(LlamaForCausalLM(config)).watched
    assert {name.split(".")[2] for name in watched} == {"0", "4", "8"}
    assert all("norm" not in name for name in watched)
