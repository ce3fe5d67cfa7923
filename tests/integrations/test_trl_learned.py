"""``variance="learned"``: the norms that reach the model are the rollouts' own, in plan order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("trl")

import torch
import trl_runs

from viprl.errors import ConfigurationError
from viprl.integrations.trl.learned import ROW
from viprl.variance import OutcomeMoments


def run(kind: str, folder: Any, **options: Any) -> tuple[Any, list[dict[str, Any]], dict[int, float]]:
    """A trained trainer, what its model observed, and exact squared norms of the first generation batch by row."""
    trainer = trl_runs.make(kind, folder, variance="learned", **options)
    seen: list[dict[str, Any]] = []
    exact: dict[int, float] = {}
    observe, loss = trainer.allocator.model.learn, trainer.compute_loss

    def recorded_observe(ids: Any, prediction: Any, sizes: Any, rewards: Any, norms: Any) -> None:
        seen.append({"ids": ids, "sizes": np.array(sizes), "rewards": np.array(rewards), "norms": np.array(norms)})
        observe(ids, prediction, sizes, rewards, norms)

    def recorded_loss(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if ROW in inputs and not seen:
            trainer.norm_hook._capture.active = False
            for position, row in enumerate(inputs[ROW].tolist()):
                exact[row] = own_norm(trainer, inputs, position)
        return loss(model, inputs, *args, **kwargs)

    trainer.allocator.model.learn = recorded_observe
    trainer.compute_loss = recorded_loss
    trainer.train()
    return trainer, seen, exact


def own_norm(trainer: Any, inputs: Any, position: int) -> float:
    part = slice(position, position + 1)
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)[part]
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)[part]
    width = inputs["completion_ids"].shape[1]
    logits = trainer.model(input_ids=ids, attention_mask=mask).logits[:, -width - 1 : -1]
    logits = logits / trainer.args.temperature
    chosen = torch.log_softmax(logits, -1).gather(-1, ids[:, -width:, None])[..., 0]
    value = (chosen * inputs["completion_mask"][part]).sum()
    # TRL multiplies by the output layer's weight in a fused kernel, so the tied embedding cannot be seen
    unseen = ("embed_tokens", "lm_head")
    watched = [
        p
        for n, p in trainer.model.named_parameters()
        if n in trainer.norm_hook.watched and not any(u in n for u in unseen)
    ]
    return float(sum(g.square().sum() for g in torch.autograd.grad(value, watched)))


@pytest.mark.parametrize(("kind", "layers"), [("rloo", "all"), ("dr_grpo", "default")])
def test_norms_are_the_rollouts_own(kind: str, layers: str, tmp_path: Any) -> None:
    trainer, seen, exact = run(kind, tmp_path, norm_layers=layers, max_steps=4, beta=0.0)
    assert len(seen) >= 1
    first = seen[0]
    live = np.flatnonzero(~np.isnan(first["norms"]))
    assert len(live) > 3 and len(exact) == first["sizes"].sum() == len(first["norms"])
    own = np.array([exact[row] for row in live])
    ratio = first["norms"][live] / own
    np.testing.assert_allclose(ratio, ratio.mean(), rtol=1e-3)  # one factor, the loss's own scale
    # groups without both outcomes have no advantage, so no norm
    owner = np.repeat(np.arange(len(first["sizes"])), first["sizes"])
    for q in range(len(first["sizes"])):
        mixed = np.ptp(first["rewards"][owner == q]) > 0
        assert np.isnan(first["norms"][owner == q]).all() != mixed
    assert trainer.norm_hook.incomplete == (["model.embed_tokens.weight"] if layers == "all" else [])
    assert trainer.allocator.model.metrics()["gradient_norm_dispersion"] > 0


def test_two_passes_over_a_batch_teach_once(tmp_path: Any) -> None:
    trainer, seen, _ = run("rloo", tmp_path, num_iterations=2, max_steps=8, beta=0.0)
    assert len(seen) == trainer.allocator.step
    assert any(np.isfinite(s["norms"]).any() for s in seen)


def test_refusals(tmp_path: Any) -> None:
    with pytest.raises(ConfigurationError, match="rloo and dr_grpo"):
        trl_runs.make("grpo", tmp_path, variance="learned", beta=0.0)
    with pytest.raises(ConfigurationError, match="beta=0"):
        trl_runs.make("dr_grpo", tmp_path, variance="learned", beta=0.1)
    with pytest.raises(ConfigurationError, match="variance"):
        trl_runs.make("rloo", tmp_path, variance="guessed")


@pytest.mark.parametrize(
    ("kind", "options", "learns"),
    [
        ("rloo", {}, True),
        ("dr_grpo", {}, True),
        ("grpo", {}, False),
        ("rloo", {"variance": "formula"}, False),
    ],
)
def test_learned_is_the_default_where_it_can_be(
    kind: str, options: dict[str, Any], learns: bool, tmp_path: Any
) -> None:
    trainer = trl_runs.make(kind, tmp_path, **options)
    assert (trainer.norm_hook is not None) == learns == isinstance(trainer.allocator.model, OutcomeMoments)
    assert trainer.args.variance == ("learned" if learns else "formula")
