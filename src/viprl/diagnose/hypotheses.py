"""Tests of the two assumptions behind the paper's variance formula (its Appendix B). Numpy and scipy alone.

1. Within a prompt, rewards R and gradient norms Z are uncorrelated: one Pearson correlation per prompt, the p-values
   combined over prompts by Fisher's method (sensitive to a few strong effects) and by Edgington's sum (sensitive to
   many weak ones).
2. All prompts have the same Var(Z): Levene's test with medians (Brown-Forsythe) and O'Brien's test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from viprl._arrays import FloatArray
from viprl.errors import InvalidInputError

EXACT_EDGINGTON = 200
"""Up to this many p-values the distribution of their sum is exact."""


@dataclass(frozen=True)
class TestResult:
    """A test's statistic, p-value and the number of groups (prompts) that entered it."""

    statistic: float
    p_value: float
    groups: int

    __test__ = False  # not a test case of pytest


def pearson(rewards: Sequence[ArrayLike], values: Sequence[ArrayLike]) -> tuple[FloatArray, FloatArray]:
    """Correlation and two-sided p-value (Student's t) of each prompt.

    Args:
        rewards, values: one pair of (N_q,) arrays per prompt; prompts with fewer than four rollouts or where either
            does not vary are left out.

    Returns:
        (K,) correlations and (K,) p-values of the prompts that qualify.
    """
    if len(rewards) != len(values):
        raise InvalidInputError(f"one array of values per prompt is needed, but got {len(values)} for {len(rewards)}")
    found = []
    for r, z in zip(rewards, values, strict=True):
        x, y = np.asarray(r, dtype=np.float64), np.asarray(z, dtype=np.float64)
        if len(x) >= 4 and np.ptp(x) > 0 and np.ptp(y) > 0:
            result = stats.pearsonr(x, y)
            found.append((float(result.statistic), float(result.pvalue)))
    table = np.array(found, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def fisher(p_values: ArrayLike) -> TestResult:
    """-2 sum log p of p-values (K,) is chi-squared with 2 K degrees of freedom if all K hypotheses hold."""
    p = _p_values(p_values)
    statistic = float(-2 * np.log(np.maximum(p, np.finfo(float).tiny)).sum())
    return TestResult(statistic, float(stats.chi2.sf(statistic, 2 * len(p))), len(p))


def edgington(p_values: ArrayLike) -> TestResult:
    """The sum of uniform p-values (K,) has the Irwin-Hall distribution; small sums speak against the hypotheses."""
    p = _p_values(p_values)
    return TestResult(float(p.sum()), irwin_hall_cdf(float(p.sum()), len(p)), len(p))


def irwin_hall_cdf(x: float, count: int) -> float:
    """P(U_1 + ... + U_K <= x) = sum_j (-1)^j C(K, j) (x - j)^K / K! over j <= x."""
    if count > EXACT_EDGINGTON:
        # normal with the first Edgeworth term (no skew, excess kurtosis -6 / (5 K)); the next is of order 1 / K^2
        z = (x - count / 2) / np.sqrt(count / 12)
        correction = 1.2 / count / 24 * (z**3 - 3 * z) * stats.norm.pdf(z)
        return float(np.clip(stats.norm.cdf(z) + correction, 0.0, 1.0))
    if count / 2 < x < count:  # the shorter sum, by symmetry
        return 1.0 - irwin_hall_cdf(count - x, count)
    # the terms alternate and are far larger than the result, so they are added as exact fractions
    exact = Fraction(x)
    total = sum(
        ((-1) ** j * math.comb(count, j) * (exact - j) ** count for j in range(min(math.floor(x), count) + 1)),
        start=Fraction(0),
    )
    return min(max(float(total / math.factorial(count)), 0.0), 1.0)


def levene(groups: Sequence[ArrayLike]) -> TestResult:
    """Levene's test on absolute deviations from the medians of groups (n,) each: robust to long tails."""
    kept = _groups(groups)
    deviations = [np.abs(z - np.median(z)) for z in kept]
    return _anova(deviations)


def obrien(groups: Sequence[ArrayLike]) -> TestResult:
    """O'Brien's test of groups (n,) each: analysis of variance of scores whose means are the variances (w = 1/2)."""
    return _anova([obrien_scores(z) for z in _groups(groups)])


def obrien_scores(values: FloatArray) -> FloatArray:
    """(N,) O'Brien's transform of one group; its mean is the sample variance."""
    n = len(values)
    squares = (values - values.mean()) ** 2
    variance = squares.sum() / (n - 1)
    scores: FloatArray = ((n - 1.5) * n * squares - 0.5 * variance * (n - 1)) / ((n - 1) * (n - 2))
    return scores


def _anova(groups: Sequence[FloatArray]) -> TestResult:
    if all(np.ptp(g) == 0 for g in groups):
        means = [float(g.mean()) for g in groups]
        return TestResult(float("nan"), 1.0 if np.ptp(means) == 0 else 0.0, len(groups))
    result = stats.f_oneway(*groups)
    return TestResult(float(result.statistic), float(result.pvalue), len(groups))


def variance_ratio(groups: Sequence[ArrayLike]) -> float:
    """Effect size for unequal variances: 90th over 10th percentile of the variances of groups (n,) each."""
    variances = np.array([np.var(g, ddof=1) for g in _groups(groups)])
    low, high = np.quantile(variances, [0.1, 0.9])
    return float(high / low) if low > 0 else float("inf") if high > 0 else 1.0


def _p_values(values: ArrayLike) -> FloatArray:
    p = np.asarray(values, dtype=np.float64)
    if p.ndim != 1 or not len(p) or not (p.min() >= 0 and p.max() <= 1):
        raise InvalidInputError(f"at least one p-value in [0, 1] is needed, but got {values!r:.80}")
    return p


def _groups(groups: Sequence[ArrayLike]) -> list[FloatArray]:
    kept = [np.asarray(g, dtype=np.float64) for g in groups]
    if len(kept) < 2 or min(len(g) for g in kept) < 3:
        raise InvalidInputError(
            f"at least two groups of at least three values are needed, but got sizes {[len(g) for g in kept]!r:.80}"
        )
    return kept
