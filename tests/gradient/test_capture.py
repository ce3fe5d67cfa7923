# ruff: noqa: E402  (optional packages are asked for first)
"""Per-rollout gradients seen by hooks equal gradients computed one rollout at a time."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.gradient import models

from viprl.errors import ConfigurationError
from viprl.gradient.capture import GradientCapture, only_named
from viprl.gradient.consumers import NormSum, SketchSum, WholeGradients
from viprl.gradient.sketch import CountSketch

FACTORIES = {
    "llama tied": models.llama,
    "llama untied": lambda: models.llama(tied=False),
    "qwen3 (head norms)": models.qwen3,
    "gpt2 (Conv1D, LayerNorm, biases, tied)": models.gpt2,
}


def run(model, consumer_of, **options):
    ids, attention, completion = models.batch()
    capture = GradientCapture(model, lambda name, uses: None, **options)
    capture.consumer = consumer_of(capture)
    with capture:
        capture.start()
        models.log_probabilities(model, ids, attention, completion).sum().backward()
        capture.finish()
    exact = models.exact_gradients(model, ids, attention, completion, list(capture.shapes))
    return capture, exact


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("method", ["auto", "ghost", "direct"])
def test_norms(name: str, method: str) -> None:
    capture, exact = run(FACTORIES[name](), lambda c: NormSum(method))
    assert capture.unsupported == []
    torch.testing.assert_close(capture.consumer.total().float(), exact.square().sum(1), rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", FACTORIES)
def test_whole_gradients(name: str) -> None:
    capture, exact = run(FACTORIES[name](), lambda c: WholeGradients(c.shapes))
    torch.testing.assert_close(capture.consumer.total(), exact, rtol=1e-3, atol=1e-5 * exact.abs().max().item())


@pytest.mark.parametrize("name", FACTORIES)
def test_sketch_of_hooks_is_sketch_of_gradients(name: str) -> None:
    capture, exact = run(FACTORIES[name](), lambda c: SketchSum(CountSketch(c.shapes, size=97)))
    sketch = CountSketch(capture.shapes, size=97)
    expected = torch.zeros(len(exact), 97)
    start = 0
    for parameter, shape in capture.shapes.items():
        stop = start + int(torch.Size(shape).numel())
        sketch.add_dense(expected, parameter, exact[:, start:stop])
        start = stop
    torch.testing.assert_close(
        capture.consumer.total(), expected, rtol=1e-3, atol=1e-4 * exact.norm(dim=1).max().item()
    )


def test_every_parameter_is_watched() -> None:
    for factory in FACTORIES.values():
        model = factory()
        capture = GradientCapture(model, NormSum())
        assert set(capture.shapes) == {name for name, _ in model.named_parameters()}


def test_selected_rows_only() -> None:
    model = models.llama()
    ids, attention, completion = models.batch()
    with GradientCapture(model, norms := NormSum()) as capture:
        capture.start(select=torch.tensor([3, 1]))
        models.log_probabilities(model, ids, attention, completion).sum().backward()
    exact = models.exact_gradients(model, ids, attention, completion, list(capture.shapes))
    torch.testing.assert_close(norms.total().float(), exact.square().sum(1)[[3, 1]], rtol=1e-4, atol=0)


def test_packed_rows_give_each_rollout_its_own_norm() -> None:
    """Two rollouts in one row, kept apart by a block-diagonal mask, against the same two in rows of their own."""
    model = models.llama()
    a, b = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[9, 10, 11, 12, 13]])
    separate = [
        models.exact_gradients(
            model, x, torch.ones_like(x), torch.ones(x.shape), [n for n, _ in model.named_parameters()]
        )
        for x in (a, b)
    ]
    packed = torch.cat([a, b], 1)
    segments = torch.tensor([[0] * 4 + [1] * 5])
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    same = segments[0][:, None] == segments[0][None, :]
    allowed = same & torch.ones(9, 9, dtype=torch.bool).tril()
    mask = torch.zeros(1, 1, 9, 9).masked_fill(~allowed, float("-inf"))
    with GradientCapture(model, norms := NormSum()) as capture:
        capture.start(segments=segments)
        logits = model(input_ids=packed, attention_mask=mask, position_ids=positions).logits[:, :-1]
        chosen = torch.log_softmax(logits, -1).gather(-1, packed[:, 1:, None])[0, :, 0]
        chosen[segments[0, 1:] == segments[0, :-1]].sum().backward()
    expected = torch.cat([g.square().sum(1) for g in separate])
    torch.testing.assert_close(norms.total().float(), expected, rtol=1e-4, atol=0)


def test_gradient_checkpointing_changes_nothing() -> None:
    model = models.llama().train()
    ids, attention, completion = models.batch()
    totals = []
    for reentrant in (None, False, True):
        if reentrant is not None:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        with GradientCapture(model, norms := NormSum()) as capture:
            capture.start()
            models.log_probabilities(model, ids, attention, completion).sum().backward()
            capture.finish()
        totals.append(norms.total())
    torch.testing.assert_close(totals[1], totals[0], rtol=1e-5, atol=0)
    torch.testing.assert_close(totals[2], totals[0], rtol=1e-5, atol=0)


def test_lora_adapters() -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(models.llama(), peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    ids, attention, completion = models.batch()
    with GradientCapture(model, norms := NormSum()) as capture:
        assert all("lora" in name for name in capture.shapes)
        capture.start()
        models.log_probabilities(model, ids, attention, completion).sum().backward()
    exact = models.exact_gradients(model, ids, attention, completion, list(capture.shapes))
    torch.testing.assert_close(norms.total().float(), exact.square().sum(1), rtol=1e-4, atol=0)


def test_a_module_used_twice_is_refused() -> None:
    layer = torch.nn.Linear(3, 3)
    with GradientCapture(layer, NormSum()) as capture:
        capture.start()
        with pytest.raises(ConfigurationError, match="used again"):
            layer(layer(torch.ones(2, 4, 3))).sum().backward()


def test_rows_that_share_an_embedded_position_are_refused() -> None:
    """GPT-2 without position_ids embeds (1, T) positions: the rows' gradients are summed before any hook sees them."""
    ids, _, _ = models.batch()
    with GradientCapture(model := models.gpt2(), NormSum()) as capture:
        capture.start()
        with pytest.raises(ConfigurationError, match="as many rows"):
            model(input_ids=ids).logits.sum().backward()


def test_filters_and_nothing_left() -> None:
    model = models.llama()
    assert set(GradientCapture(model, NormSum(), layers=only_named(["layers.1.mlp"])).shapes) == {
        f"model.layers.1.mlp.{part}_proj.weight" for part in ("gate", "up", "down")
    }
    with pytest.raises(ConfigurationError, match="none was found"):
        GradientCapture(model, NormSum(), layers=only_named(["no such layer"]))
