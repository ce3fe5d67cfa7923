"""The verdict on planted worlds: one where the formula holds, one where rare successes carry huge gradients."""

from __future__ import annotations

import numpy as np
import pytest

from viprl.diagnose import diagnose
from viprl.errors import InvalidInputError
from viprl.gradient.pool import PromptPool, load_pools, save_pools


def pools(rng, prompts: int, rollouts: int, slope: float, dimensions: int = 60) -> list[PromptPool]:
    """||H||^2 has mean exp(-slope logit p) after a success and exp(slope logit p) after a failure."""
    found = []
    for q in range(prompts):
        p = rng.beta(0.4, 0.4) * 0.98 + 0.01
        logit = np.log(p / (1 - p))
        r = (rng.random(rollouts) < p).astype(float)
        scale = np.exp(slope * logit * np.where(r == 1, -0.5, 0.5))
        h = rng.normal(size=(rollouts, dimensions)) / np.sqrt(dimensions) * scale[:, None]
        squares = (h**2).sum(1)
        cheap = {"good": squares * rng.uniform(0.9, 1.1, rollouts), "noise": rng.uniform(1, 2, rollouts)}
        found.append(PromptPool(f"q{q}", r, h @ h.T, np.full(rollouts, 5.0), cheap))
    return found


def test_formula_holds() -> None:
    report = diagnose(pools(np.random.default_rng(0), 300, 40, 0.0))
    assert report.verdict == "helps" and "safe here" in report.text
    assert report.ratios["formula"].high < 1
    assert report.formula_fit > 0.9
    assert abs(report.mean_correlation) < 0.05
    assert report.proxy_correlation["good"] > 0.9 > report.proxy_correlation["noise"]


def test_formula_harms() -> None:
    report = diagnose(pools(np.random.default_rng(1), 200, 40, 0.8))
    assert report.verdict == "harms" and "NOT safe" in report.text
    assert report.tests["fisher"].p_value < 1e-6
    low, _, high = report.outcome_ratio
    assert low > 2 and high < 0.5
    assert report.ratios["learned"].high < report.ratios["formula"].low


def test_mean_aggregation_divides_by_lengths() -> None:
    own = pools(np.random.default_rng(2), 20, 16, 0.0)
    total, mean = (diagnose(own, aggregation=a) for a in ("sum", "mean"))
    assert total.ratios["formula"].value == pytest.approx(mean.ratios["formula"].value)  # equal lengths: one factor
    np.testing.assert_allclose(own[0].norms("mean"), own[0].norms("sum") / 5)


def test_too_little_data() -> None:
    with pytest.raises(InvalidInputError, match="at least 5 prompts"):
        diagnose(pools(np.random.default_rng(3), 4, 16, 0.0))


def test_pools_survive_a_file(tmp_path) -> None:
    own = pools(np.random.default_rng(4), 20, 16, 0.5)
    save_pools(tmp_path / "pools.npz", own)
    read = load_pools(tmp_path / "pools.npz")
    assert [p.prompt_id for p in read] == [p.prompt_id for p in own]
    for a, b in zip(own, read, strict=True):
        np.testing.assert_array_equal(a.gram, b.gram)
        np.testing.assert_array_equal(a.proxies["good"], b.proxies["good"])
    assert diagnose(read) == diagnose(own)
