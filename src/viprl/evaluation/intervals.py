"""Confidence intervals for measures: Wilson for a proportion, bootstrap for a mean over problems."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from viprl.errors import InvalidInputError


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence limits, in the unit of the measure."""

    estimate: float
    low: float
    high: float
    level: float = 0.95

    def excludes(self, value: float) -> bool:
        """True where ``value`` lies outside [low, high]."""
        return not (self.low <= value <= self.high)


def wilson_interval(successes: float, trials: int, *, level: float = 0.95) -> Interval:
    """Wilson's score interval of a proportion (Wilson 1927): sensible also at 0 and 1 and for few trials.

    Args:
        successes: 0 <= successes <= trials.
        trials: independent trials, at least 1. Completions of the same problem are not independent: take problems.
    """
    z = _quantile(level)
    if trials < 1 or not 0 <= successes <= trials:
        raise InvalidInputError(
            f"0 <= successes <= trials and trials >= 1 must hold, but got (successes={successes}, trials={trials})"
        )
    rate = successes / trials
    centre = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * np.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    low = 0.0 if successes == 0 else float(max(centre - half, 0.0))
    high = 1.0 if successes == trials else float(min(centre + half, 1.0))
    return Interval(rate, low, high, level)


def bootstrap_interval(values: ArrayLike, *, level: float = 0.95, resamples: int = 4000, seed: int = 0) -> Interval:
    """Percentile bootstrap interval of the mean over problems.

    Args:
        values: (P,) one number for each problem (its Pass@k, its F1, ...); problems are resampled.
    """
    data = np.asarray(values, dtype=np.float64)
    _quantile(level)
    if data.ndim != 1 or not len(data) or not np.isfinite(data).all():
        raise InvalidInputError(f"`values` must be a non-empty finite vector, but got shape {data.shape}")
    rng = np.random.default_rng(seed)
    means = np.concatenate(
        [data[rng.integers(0, len(data), (count, len(data)))].mean(axis=1) for count in _chunks(resamples, len(data))]
    )
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(data.mean()), float(low), float(high), level)


def paired_bootstrap_interval(
    first: ArrayLike, second: ArrayLike, *, level: float = 0.95, resamples: int = 4000, seed: int = 0
) -> Interval:
    """Interval of the mean difference first - second over the same problems, both (P,)."""
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape:
        raise InvalidInputError(f"both must have the same problems, but got shapes {a.shape}, {b.shape}")
    return bootstrap_interval(a - b, level=level, resamples=resamples, seed=seed)


def _quantile(level: float) -> float:
    if not 0 < level < 1:
        raise InvalidInputError(f"0 < level < 1 must hold, but got {level}")
    return float(ndtri((1 + level) / 2))


def _chunks(resamples: int, size: int) -> list[int]:
    """Split the resamples so that no index matrix exceeds about 4 million entries."""
    step = max(1, 4_000_000 // max(size, 1))
    return [min(step, resamples - start) for start in range(0, resamples, step)]
