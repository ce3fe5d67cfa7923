"""Configuration, comparison and the two commands, on synthetic pools: no model is loaded."""

from __future__ import annotations

import json

import numpy as np
import pytest

from viprl.cli import main
from viprl.errors import ConfigurationError, InvalidInputError
from viprl.gradient.comparison import compare, oracle_sizes, ratio_and_error, ratio_difference
from viprl.gradient.job import GradientConfig, compare_policies, load_gradient_config, table
from viprl.gradient.pool import PromptPool, save_pools


def pools(prompts: int = 60, rollouts: int = 48, seed: int = 0) -> list[PromptPool]:
    rng = np.random.default_rng(seed)
    found = []
    for q in range(prompts):
        r = (rng.random(rollouts) < rng.beta(0.5, 0.5)).astype(float)
        h = rng.normal(size=(rollouts, 30))
        found.append(PromptPool(f"q{q}", r, h @ h.T, np.full(rollouts, 4.0), {"length": np.full(rollouts, 4.0)}))
    return found


def test_ratios_of_known_variances() -> None:
    v = np.array([4.0, 1.0, 1.0, 0.0])
    uniform = np.full(4, 5)
    results = compare({"uniform": uniform, "mine": [9, 5, 3, 3]}, uniform, v, v, predicted={"mine": 0.7})
    assert results[0].measured == 1.0 and results[0].standard_error == 0.0
    assert results[1].measured == pytest.approx((4 / 8 + 1 / 4 + 1 / 2) / (6 / 4))
    assert results[1].predicted == 0.7 and np.isnan(results[0].predicted)
    with pytest.raises(InvalidInputError, match="same budget"):
        compare({"mine": [9, 5, 3, 4]}, uniform, v, v)


def test_jackknife_is_the_delta_method() -> None:
    rng = np.random.default_rng(1)
    y = rng.gamma(2.0, size=400)
    x = y * rng.uniform(0.5, 1.5, 400)
    ratio, error = ratio_and_error(x, y)
    residual = x - ratio * y
    assert error == pytest.approx(residual.std() / np.sqrt(400) / y.mean(), rel=0.02)
    difference, error, p = ratio_difference(x, x * 1.2, y)
    assert difference == pytest.approx(-0.2 * ratio) and p < 1e-6 and error > 0


def test_oracle_is_never_worse_than_uniform() -> None:
    rng = np.random.default_rng(2)
    v1 = rng.normal(1, 1, 30)  # estimates may be negative
    sizes = oracle_sizes(v1, v1, 240, 3, 32)
    assert sizes.sum() == 240 and sizes.min() == 3
    kept = np.maximum(v1, 0)
    assert (kept / (sizes - 1)).sum() <= (kept / 7).sum()


def test_policies_on_a_world_where_the_formula_holds() -> None:
    config = GradientConfig(task="arithmetic", policies=("vip", "learned", "inverse_accuracy", "oracle"))
    results = {r.name: r for r in compare_policies(pools(150), config)}
    assert list(results) == ["uniform", "vip", "learned", "inverse_accuracy", "oracle"]
    assert results["oracle"].measured < results["vip"].measured < 1
    assert results["inverse_accuracy"].measured > 1
    assert results["vip"].predicted == pytest.approx(results["vip"].measured, abs=0.1)
    assert results["oracle"].share == pytest.approx(1.0)
    assert "vip" in table(list(results.values()))
    only_dead = [PromptPool("q", np.ones(48), np.eye(48), np.ones(48))] * 2
    with pytest.raises(ConfigurationError, match="both outcomes"):
        compare_policies(only_dead, config)


def test_commands_on_stored_pools(tmp_path, capsys) -> None:
    config, stored = tmp_path / "c.yaml", tmp_path / "p.npz"
    config.write_text("task: arithmetic\nhistory: 16\n")
    save_pools(stored, pools())
    assert main(["gradient-variance", str(config), "--pools", str(stored), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {r["name"] for r in rows} == {"uniform", "vip", "learned", "oracle"}
    assert main(["diagnose", str(stored)]) == 0
    assert "allocating by p(1-p)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task: arithmetic\nrollout: 3\n", "nearest: 'rollouts'"),
        ("task: arithmetic\npolicies: [vpi]\n", "policies"),
        ("task: arithmetic\nrollouts: 4\n", "at least 5"),
        ("task: arithmetic\nestimator: grpo\n", "rloo or dr_grpo"),
        ("task: arithmetic\ngroup_size: 2\n", "min_group_size <= group_size"),
        ("prompts: 3\n", "must set `task`"),
        ("task: [", "must be YAML"),
    ],
)
def test_bad_configurations(text: str, message: str, tmp_path, capsys) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        load_gradient_config(path)
    assert main(["gradient-variance", str(path)]) == 2
    assert "viprl" in capsys.readouterr().err
