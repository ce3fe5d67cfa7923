"""``+viprl.variance=learned``: norms from log-probabilities reach the model in plan order, and survive a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl.protocol")  # tests/integrations/verl alone would pass for a package "verl"
from verl.trainer.ppo.v1 import PPOTrainerSync
from verl_steps import answer, norm_by_hand, submit

from viprl.errors import CheckpointError
from viprl.integrations.verl.trainer import STATE_FILE

pytestmark = pytest.mark.verl


def learning(built: Any) -> list[dict[str, Any]]:
    """What the trainer's model observes from now on."""
    seen: list[dict[str, Any]] = []
    observe = built.allocator.model.learn

    def recorded(ids: Any, prediction: Any, sizes: Any, rewards: Any, norms: Any) -> None:
        call = {"ids": ids, "prediction": prediction, "sizes": sizes, "rewards": rewards, "norms": norms}
        seen.append({**call, "step": built.allocator.step})
        observe(ids, prediction, sizes, rewards, norms)

    built.allocator.model.learn = recorded
    return seen


def steps(built: Any, monkeypatch: pytest.MonkeyPatch, count: int, *, low: float = 0.0) -> dict[str, float]:
    """Metrics after some steps of eight of the twelve prompts; prompt i succeeds in about i of twelve sessions."""
    metrics: dict[str, float] = {}
    for step in range(built.allocator.step, built.allocator.step + count):
        prompts = [(5 * step + i) % 12 for i in range(8)]
        names = [f"s{step}u{i}" for i in range(8)]
        sizes = submit(built, prompts, names)
        rng = np.random.default_rng(step)
        rows = [
            (uid, session, 1.0 if rng.random() < prompt / 12 else low)
            for uid, prompt, size in zip(names, prompts, sizes, strict=True)
            for session in range(size)
        ]
        metrics = answer(built, rows, monkeypatch)
    return metrics


def test_norms_and_rewards_reach_the_learned_model_in_plan_order_before_the_predictor(
    make_trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    built = make_trainer({"viprl.variance": "learned", "viprl.max_missing": 1.0})
    seen = learning(built)
    rng = np.random.default_rng(0)
    for step in range(3):
        names = [f"s{step}u{i}" for i in range(8)]
        prompts = [*range(7), 0]  # one prompt twice
        expected = built.allocator.predict([f"t/{i}" for i in prompts]).mean
        sizes = submit(built, prompts, names)
        rows = [(uid, s, float(rng.random() < 0.5)) for uid, n in zip(names, sizes, strict=True) for s in range(n)]
        rows[3] = (*rows[3][:2], math.nan)
        kept = [rows[i] for i in rng.permutation(len(rows)) if i == 3 or rng.random() > 0.2]
        answer(built, kept, monkeypatch, padding=2)
        call = seen[step]
        assert call["step"] == step and call["ids"] == tuple(f"t/{i}" for i in prompts)
        np.testing.assert_array_equal(call["prediction"].mean, expected)
        starts = np.cumsum([0, *sizes])
        for q, uid in enumerate(names):
            part = slice(starts[q], starts[q + 1])
            pairs = zip(call["rewards"][part], call["norms"][part], strict=True)
            found = sorted((norm, str(reward)) for reward, norm in pairs if not math.isnan(norm))
            own = sorted((norm_by_hand(f"{u}_{s}_0"), str(reward)) for u, s, reward in kept if u == uid)
            assert [reward for _, reward in found] == [reward for _, reward in own]
            np.testing.assert_allclose([norm for norm, _ in found], [norm for norm, _ in own], rtol=1e-5)
    assert len(seen) == 3


def test_learned_variance_shows_in_the_metrics(
    make_trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = steps(make_trainer({"viprl.variance": "learned"}), monkeypatch, 4)
    assert 0 < found["viprl/learned_variance_ratio"] != 1.0
    assert found["viprl/gradient_norm_dispersion"] != 1.0
    assert {"viprl/learned_variance_blend", "viprl/learned_variance_exponent"} <= found.keys()
    plain = steps(make_trainer({"viprl.variance": "formula"}), monkeypatch, 1)
    assert not any("learned" in name for name in plain)


def test_failures_of_minus_one_teach_the_same(
    make_trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []
    for changes in ({"low": 0.0}, {"low": -1.0}):
        built = make_trainer({"viprl.variance": "learned", "viprl.policy": "uniform"})
        steps(built, monkeypatch, 4, **changes)
        states.append(built.allocator.model.state_dict()["curves"])
    for name, value in states[0].items():
        np.testing.assert_array_equal(value, states[1][name])


def test_learned_variance_survives_a_checkpoint(
    make_trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", lambda self: None)
    monkeypatch.setattr(PPOTrainerSync, "_load_checkpoint", lambda self: None)
    built = make_trainer({"viprl.variance": "learned"})
    steps(built, monkeypatch, 6)
    built.global_steps = 6
    built._save_checkpoint()
    resumed = make_trainer({"viprl.variance": "learned"})
    resumed.global_steps = 6
    resumed._load_checkpoint()
    ids = [f"t/{i}" for i in range(12)]
    for one, other in zip(
        *(each.allocator.model.moments(built.allocator.predict(ids), ids) for each in (built, resumed)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert one.std() > 0
    expected, actual = steps(built, monkeypatch, 2), steps(resumed, monkeypatch, 2)
    expected.pop("viprl/overhead_seconds"), actual.pop("viprl/overhead_seconds")
    assert actual == pytest.approx(expected, rel=0, abs=0, nan_ok=True)
    with pytest.raises(CheckpointError, match="outcome_moments_rloo"):
        make_trainer({"viprl.variance": "formula"})._restore(
            Path(built.config.trainer.default_local_dir, "global_step_6", STATE_FILE)
        )
