"""The tests agree with scipy, have uniform p-values under the null hypothesis, and find planted effects."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from viprl.diagnose import edgington, fisher, levene, obrien, pearson, variance_ratio
from viprl.diagnose.hypotheses import irwin_hall_cdf
from viprl.errors import InvalidInputError


def groups(rng, count: int = 20, size: int = 16, spread=None):
    spread = np.ones(count) if spread is None else spread
    return [rng.normal(0, s, size) for s in spread]


def binary(rng, count: int = 30, size: int = 16):
    return [rng.permutation(np.repeat([0.0, 1.0], [size // 2, size - size // 2])) for _ in range(count)]


def uniform_enough(p_values: list[float]) -> bool:
    return stats.kstest(p_values, "uniform").pvalue > 1e-3


def test_against_scipy() -> None:
    rng = np.random.default_rng(0)
    z = groups(rng, 7, 12, np.linspace(1, 2, 7))
    expected = stats.levene(*z, center="median")
    assert (levene(z).statistic, levene(z).p_value) == pytest.approx((expected.statistic, expected.pvalue))
    expected = stats.f_oneway(*stats.obrientransform(*z))
    assert (obrien(z).statistic, obrien(z).p_value) == pytest.approx((expected.statistic, expected.pvalue))
    p = rng.random(40)
    expected = stats.combine_pvalues(p, method="fisher")
    assert (fisher(p).statistic, fisher(p).p_value) == pytest.approx((expected.statistic, expected.pvalue))
    r = binary(rng, 5)
    x = [rng.normal(size=16) for _ in r]
    both = [stats.pearsonr(a, b) for a, b in zip(r, x, strict=True)]
    found = pearson(r, x)
    np.testing.assert_allclose(found[0], [b.statistic for b in both])
    np.testing.assert_allclose(found[1], [b.pvalue for b in both])


def test_edgington_known_values() -> None:
    assert edgington([0.3]).p_value == pytest.approx(0.3)
    assert edgington([0.3, 0.4]).p_value == pytest.approx(0.7**2 / 2)
    assert edgington([0.9, 0.8]).p_value == pytest.approx(1 - 0.3**2 / 2)
    assert edgington([0.5] * 9).p_value == pytest.approx(0.5)
    assert edgington([0.0, 0.0, 0.0]).p_value == 0.0 and edgington([1.0, 1.0]).p_value == 1.0


def test_irwin_hall_is_accurate_and_joins_its_approximation() -> None:
    rng = np.random.default_rng(1)
    sums = rng.random((200_000, 12)).sum(1)
    for x in (3.0, 5.2, 6.0, 7.9):
        share = (sums <= x).mean()
        assert irwin_hall_cdf(x, 12) == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / 200_000))
    for z in (-3.0, -1.5, 0.5, 2.0):
        exact, approximate = (irwin_hall_cdf(k / 2 + z * np.sqrt(k / 12), k) for k in (200, 201))
        assert approximate == pytest.approx(exact, rel=2e-3)


def test_p_values_are_uniform_under_the_null() -> None:
    rng = np.random.default_rng(2)
    found: dict[str, list[float]] = {name: [] for name in ("fisher", "edgington", "levene", "obrien")}
    for _ in range(150):
        z = groups(rng)
        # normal norms make each prompt's t-test exact
        _, p = pearson(binary(rng, len(z)), z)
        found["fisher"].append(fisher(p).p_value)
        found["edgington"].append(edgington(p).p_value)
        found["levene"].append(levene(z).p_value)
        found["obrien"].append(obrien(z).p_value)
    assert uniform_enough(found["fisher"]) and uniform_enough(found["edgington"])
    # these two are approximate at 16 values a group: their level must hold
    assert np.mean(np.array(found["levene"]) < 0.05) < 0.08
    assert 0.005 < np.mean(np.array(found["obrien"]) < 0.05) < 0.09


def test_power_under_planted_effects() -> None:
    rng = np.random.default_rng(3)
    r = binary(rng, 40)
    weak = [rng.normal(size=16) + 0.6 * x for x in r]  # weak everywhere
    _, p = pearson(r, weak)
    assert edgington(p).p_value < 0.01 and fisher(p).p_value < 0.01
    strong = [rng.normal(size=16) + (3.0 * x if i < 2 else 0) for i, x in enumerate(r)]  # strong in two prompts
    _, p = pearson(r, strong)
    assert fisher(p).p_value < 0.01
    unequal = groups(rng, 20, 16, np.repeat([1.0, 2.5], 10))
    assert levene(unequal).p_value < 0.01 and obrien(unequal).p_value < 0.01
    assert 3 < variance_ratio(unequal) < 14


def test_prompts_without_variation_are_left_out() -> None:
    r, p = pearson([[1, 1, 1, 1], [0, 1, 0, 1], [0, 1, 0, 1]], [[1, 2, 3, 4], [1, 1, 1, 1], [1, 2, 1.5, 3]])
    assert len(r) == len(p) == 1
    assert levene([[1, 1, 1], [2, 2, 2]]).p_value == 1.0


def test_refusals() -> None:
    with pytest.raises(InvalidInputError, match="at least one p-value"):
        fisher([])
    with pytest.raises(InvalidInputError, match="at least one p-value"):
        edgington([0.2, 1.2])
    with pytest.raises(InvalidInputError, match="two groups"):
        levene([[1, 2, 3]])
    with pytest.raises(InvalidInputError, match="one array"):
        pearson([[1]], [])
