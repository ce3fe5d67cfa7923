"""Allocations against the measured truth: by how much does each lower the variance of the batch gradient?

Notation: B prompts of one batch, each with a pool of rollouts that no prediction has seen; v_q(n) the measured
variance; n, u (B,) group sizes of a policy and of uniform allocation. The measured ratio is

    sum_q v_q(n_q) / sum_q v_q(u_q)

below 1 where the policy helps. Intervals are jackknives over prompts with the group sizes held fixed: they cover both
the choice of prompts and the noise of each prompt's pool, but not the noise of the predictor's own history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from viprl._arrays import FloatArray, IntArray
from viprl.allocation import solve_allocation
from viprl.errors import InvalidInputError
from viprl.gradient.moments import variance_curve
from viprl.gradient.pool import PromptPool
from viprl.variance import VarianceModel


class KnownMoments(VarianceModel):
    """A variance model from given constants V1, V2 (B,): the oracle's. ``prediction`` is read for its length alone."""

    def __init__(self, v1: ArrayLike, v2: ArrayLike, estimator: str = "rloo") -> None:
        # estimates may be negative; the solver needs a curve that a prompt could have
        self.v1 = np.maximum(np.asarray(v1, dtype=np.float64), 0.0)
        self.v2 = np.maximum(np.asarray(v2, dtype=np.float64), self.v1 / 2)
        self._estimator = estimator
        self.name = f"known_{estimator}"
        self.convex_from: int | None = 2 if estimator == "rloo" else 4

    def variance(self, prediction: object, n: ArrayLike) -> FloatArray:
        """(B,) at per-prompt sizes, or (B, K) for sizes (1, K)."""
        sizes = np.asarray(n)
        if sizes.ndim == 2:
            return self.curve(prediction, sizes[0])
        return np.asarray(variance_curve(self.v1, self.v2, sizes, self._estimator), dtype=np.float64)

    def curve(self, prediction: object, sizes: ArrayLike) -> FloatArray:
        """(B, K)."""
        n = np.asarray(sizes).reshape(1, -1)
        return np.asarray(variance_curve(self.v1[:, None], self.v2[:, None], n, self._estimator), dtype=np.float64)


@dataclass(frozen=True)
class PolicyResult:
    """One policy on one batch.

    Attributes:
        predicted: ratio that the policy's own variance model promised (NaN where it promises nothing).
        measured, standard_error: the measured ratio to uniform.
        low, high: its 95 % interval.
        share: part of the way from uniform to the oracle, (1 - measured) / (1 - oracle); NaN without an oracle.
        share_error: its jackknife standard error.
    """

    name: str
    predicted: float
    measured: float
    standard_error: float
    low: float
    high: float
    share: float
    share_error: float
    group_sizes: IntArray


def pool_constants(pools: Sequence[PromptPool], aggregation: str = "sum") -> tuple[FloatArray, FloatArray]:
    """(V1, V2), each (B,); zero for prompts whose rollouts all had the same reward."""
    constants = np.zeros((2, len(pools)))
    for q, pool in enumerate(pools):
        if pool.mixed:
            moments = pool.moments(aggregation)
            constants[:, q] = moments.v1, moments.v2
    return constants[0], constants[1]


def compare(
    sizes: Mapping[str, ArrayLike],
    uniform: ArrayLike,
    v1: ArrayLike,
    v2: ArrayLike,
    *,
    estimator: str = "rloo",
    predicted: Mapping[str, float] | None = None,
    oracle: str | None = None,
) -> list[PolicyResult]:
    """Measured ratios of several allocations of the same budget.

    Args:
        sizes: policy -> (B,) group sizes, at least 2.
        uniform: (B,).
        v1, v2: (B,) measured constants, from rollouts that no allocation has seen.
        predicted: promised ratios, by policy.
        oracle: the policy against which shares of the possible gain are stated.

    Raises:
        InvalidInputError: group sizes that differ in length or budget.
    """
    first, second, equal = (np.asarray(x, dtype=np.float64) for x in (v1, v2, uniform))
    reference = variance_curve(first, second, equal, estimator)
    values: dict[str, FloatArray] = {}
    for name, own in sizes.items():
        n = np.asarray(own, dtype=np.int64)
        if n.shape != equal.shape or n.sum() != equal.sum():
            raise InvalidInputError(
                f"{name} must divide the same budget over the same prompts as uniform, but got {n.sum()} rollouts of "
                f"{len(n)} prompts for {int(equal.sum())} of {len(equal)}"
            )
        values[name] = variance_curve(first, second, n, estimator)
    best = values.get(oracle) if oracle is not None else None
    results = []
    for name, value in values.items():
        ratio, error = ratio_and_error(value, reference)
        share, share_error = (np.nan, np.nan) if best is None else gain_share(value, best, reference)
        results.append(
            PolicyResult(
                name=name,
                predicted=float((predicted or {}).get(name, np.nan)),
                measured=ratio,
                standard_error=error,
                low=ratio - 1.96 * error,
                high=ratio + 1.96 * error,
                share=float(share),
                share_error=float(share_error),
                group_sizes=np.asarray(sizes[name], dtype=np.int64),
            )
        )
    return results


def ratio_and_error(numerator: FloatArray, denominator: FloatArray) -> tuple[float, float]:
    """Ratio of two sums over prompts, and its jackknife standard error."""
    ratio = float(numerator.sum() / denominator.sum())
    left_out = (numerator.sum() - numerator) / (denominator.sum() - denominator)
    return ratio, _jackknife(left_out)


def ratio_difference(first: FloatArray, second: FloatArray, denominator: FloatArray) -> tuple[float, float, float]:
    """Difference of two policies' ratios on the same prompts, its standard error, and the two-sided p-value."""
    difference, error = ratio_and_error(first - second, denominator)
    p = float(2 * stats.norm.sf(abs(difference) / error)) if error > 0 else 1.0
    return difference, error, p


def gain_share(value: FloatArray, best: FloatArray, reference: FloatArray) -> tuple[float, float]:
    """Part of the oracle's gain, and its jackknife standard error."""
    share, error = ratio_and_error(reference - value, reference - best)
    return share, error


def _jackknife(values: FloatArray) -> float:
    count = len(values)
    if count < 2:
        return float("nan")
    return float(np.sqrt((count - 1) / count * ((values - values.mean()) ** 2).sum()))


def oracle_sizes(v1: ArrayLike, v2: ArrayLike, budget: int, low: int, high: int, estimator: str = "rloo") -> IntArray:
    """(B,) the best group sizes for known constants."""
    model = KnownMoments(v1, v2, estimator)
    return np.asarray(solve_allocation(model, model.v1, budget, low, high), dtype=np.int64)
