"""Success rates of prompts at one point in time, and the probabilities behind them.

A rate k/n of few rollouts is not a probability: the rates of prompts that are all alike differ, by chance. So the
distribution of p is estimated from the counts first: the non-parametric maximum-likelihood mixture of binomials on a
grid (Laird 1978), by EM.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlog1py, xlogy
from scipy.stats import binom, chi2

from viprl._arrays import FloatArray
from viprl.replay.log import VisitLog
from viprl.replay.worlds.pool import rates_to_probabilities

GRID = 200
EM_ROUNDS = 300
MANY = 32  # from so many rollouts on a rate is near enough to its probability
LARGEST_GRID = 64  # rates k/n are told from exact ones up to this n
FINEST = 6  # decimals that a rate is read with
OUTLIERS = 0.01  # share of the rates that may lie off the grid of the others
REPEATS = 3  # rates from so many per distinct value on repeat themselves, as those of few rollouts do
IMPLAUSIBLE = 1e-6  # below this chance the counts are not those of binomials with one n


class MixedRolloutsError(Exception):
    """Rates of few rollouts whose numbers differ and cannot be told from the rates."""


@dataclass(frozen=True)
class Rates:
    """Rates of N prompts.

    Attributes:
        prompt_ids: (N,).
        rate: (N,) observed success rates.
        rollouts: (N,) rollouts behind each, or None where the rates are to be taken as exact.
    """

    prompt_ids: tuple[str, ...]
    rate: FloatArray
    rollouts: NDArray[np.int64] | None

    def probabilities(self, seed: int = 0) -> FloatArray:
        """(N,) success probabilities for a simulation, as spread as those behind the rates.

        (k + 1/4) / (n + 1/2) from ``MANY`` rollouts on; below, a draw from the prompt's posterior under the estimated
        distribution (the raw rates would be too spread, the posterior means too little). Exact rates are themselves.
        """
        if self.rollouts is None:
            return self.rate
        k, n = self.rate * self.rollouts, self.rollouts.astype(np.float64)
        p = rates_to_probabilities(k, n)
        few = np.flatnonzero(n < MANY)
        if len(few):
            grid, weights = estimate_distribution(self)
            cumulative = np.cumsum(_likelihood(np.rint(k[few]), n[few], grid) * weights, axis=1)
            u = np.random.default_rng([seed, 17]).random(len(few)) * cumulative[:, -1]
            p[few] = grid[np.minimum((cumulative < u[:, None]).sum(axis=1), GRID - 1)]
        return p


def rates_of_log(log: VisitLog) -> Rates:
    """Each prompt's rate over all its visits; prompts without a visit are left out."""
    k, n = log.pooled()
    seen = n > 0
    ids = tuple(i for i, s in zip(log.prompt_ids, seen, strict=True) if s)
    return Rates(ids, k[seen] / n[seen], n[seen])


def estimate_distribution(rates: Rates) -> tuple[FloatArray, FloatArray]:
    """Grid (M,) of p and its weights (M,) that make the observed counts most likely.

    Rates without counts are taken as exact.
    """
    if rates.rollouts is None:
        values, counts = np.unique(rates.rate, return_counts=True)
        return values, counts / counts.sum()
    edges = np.linspace(0, np.pi / 2, GRID)
    grid = np.sin(edges) ** 2  # finer towards 0 and 1, where rates are most precise
    n = rates.rollouts.astype(np.float64)
    pairs, counts = np.unique(np.column_stack([np.rint(rates.rate * n), n]), axis=0, return_counts=True)
    likelihood = _likelihood(pairs[:, 0], pairs[:, 1], grid)
    weights = np.full(GRID, 1 / GRID)
    for _ in range(EM_ROUNDS):
        share = likelihood * weights
        share /= share.sum(axis=1, keepdims=True)
        weights = counts @ share / counts.sum()
    return grid, weights


def rollouts_behind(rate: FloatArray) -> int | None:
    """The smallest n such that the rates are k/n, as rates of n rollouts are; None where there is none up to 64.

    Rounded rates count as k/n where they are its rounding; they must then be so many that exact rates would hardly all
    lie there by chance. One rate in a hundred may be another's.

    Raises:
        MixedRolloutsError: the rates repeat themselves as those of few rollouts do, but no one number of rollouts
            explains them: they lie on no common grid, or on a common multiple whose counts no mixture of binomials has.
    """
    inner = rate[(rate > 0) & (rate < 1)]
    distinct = np.unique(inner)
    decimals = next((d for d in range(1, FINEST) if np.allclose(inner, np.round(inner, d), rtol=0, atol=1e-9)), FINEST)
    exact, rounded = 0.6 * 10.0**-FINEST, 0.5001 * 10.0**-decimals
    for n in range(1, LARGEST_GRID + 1):
        off = np.abs(inner - np.rint(inner * n) / n)
        chance = min(2 * rounded * n, 1.0) ** len(distinct)
        if (off > exact).mean() <= OUTLIERS if len(off) else True:
            break
        if (off > rounded).mean() <= OUTLIERS and chance < 1e-3:
            break
    else:
        if len(distinct) <= LARGEST_GRID and REPEATS * len(distinct) <= len(inner):
            raise MixedRolloutsError
        return None
    if not _plausible(rate, n):
        raise MixedRolloutsError
    return n


def _plausible(rate: FloatArray, n: int) -> bool:
    """Whether counts of n can be a mixture of binomials: a chi-square test against the mixture that fits them best."""
    k = np.rint(rate * n).astype(np.int64)
    seen = np.bincount(k, minlength=n + 1)
    grid, weights = estimate_distribution(Rates((), k / n, np.full(len(k), n)))
    expected = len(k) * (binom.pmf(np.arange(n + 1)[:, None], n, grid) @ weights)
    large = expected >= 5
    if large.sum() < 2:
        return True
    seen, expected = (np.append(x[large], x[~large].sum()) for x in (seen, expected))
    statistic = float(((seen - expected) ** 2 / np.maximum(expected, 1.0)).sum())
    return bool(chi2.sf(statistic, len(seen) - 1) > IMPLAUSIBLE)


def _likelihood(k: FloatArray, n: FloatArray, grid: FloatArray) -> FloatArray:
    """(N, M) binomial likelihoods, the largest of each row 1."""
    log_likelihood = xlogy(k[:, None], grid) + xlog1py((n - k)[:, None], -grid)
    result: FloatArray = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True))
    return result
