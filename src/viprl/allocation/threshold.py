"""The largest marginal gains of very many prompts, without forming or sorting them.

For v_q(n) = weight_q f(n) the step from n to n+1 gains weight_q g(n), g non-increasing, so the taken steps are those
above a threshold t. Weights are put into bins by the leading bits of their float32 form (relative width 2^-10). The
bins' edges bound the number of steps above any trial threshold from both sides with K look-ups, so t is bracketed in
microseconds; the bracket fixes all sizes but those of prompts with a step inside it, a few per cent, whose gains are
then compared exactly.

Notation: B prompts, K steps, t threshold of the gains.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from viprl._arrays import FloatArray, IntArray
from viprl.allocation.problem import AllocationProblem, fill_equally

_MANTISSA_BITS = 10
_SLACK = 1e-6  # covers the rounding to float32 (2^-24) and of the products
_TABLE_LIMIT = 1 << 22  # bins x steps, for bounds that differ between prompts


def solve_by_threshold(problem: AllocationProblem, weight: FloatArray, step: FloatArray, first: int) -> IntArray:
    """(B,) sizes: lower bounds plus the largest gains weight_q * step[n - first], ties to the earlier prompt.

    Args:
        weight: (B,) non-negative.
        step: (K,) non-negative, non-increasing gains from the sizes first, first + 1, ...
    """
    left = problem.budget - int(problem.lower.sum())
    helpful = int((step > 0).sum())
    if left >= np.count_nonzero(weight) * helpful or not _common_bounds(problem, step, first):
        useful = np.minimum(problem.upper, first + helpful)
        useful = np.maximum(np.where(weight > 0, useful, problem.lower), problem.lower)
        if problem.budget >= int(useful.sum()):
            return fill_equally(useful, problem.upper, problem.budget)
    bins = _Bins(problem, weight, step, first)
    high = bins.threshold(bins.top, left, above=True)
    low = bins.threshold(bins.bottom, left, above=False)
    surely = first + bins.count(bins.bottom, high * (1 + _SLACK))
    perhaps = first + bins.count(bins.top, low * (1 - _SLACK))
    if bins.common:  # cut off per bin, not per prompt
        result = np.clip(surely, first, first + len(step))[bins.row]
    else:
        result = np.clip(surely[bins.row], problem.lower, problem.upper)
    undecided = np.flatnonzero((perhaps > surely)[bins.row])
    reach = np.clip(perhaps[bins.row[undecided]], problem.lower[undecided], problem.upper[undecided])
    _take_between(result, undecided, reach, weight, step, first, problem.budget)
    return result


def _common_bounds(problem: AllocationProblem, step: FloatArray, first: int) -> bool:
    """Whether every prompt has the bounds first and first + K."""
    return int(problem.lower.max()) == first and int(problem.upper.min()) == first + len(step)


class _Bins:
    """Prompts binned by weight, relative to the largest weight.

    Attributes:
        row: (B,) the bin of each prompt; bins ascend with the weight.
        bottom, top: (J,) edges of the J non-empty bins, widened by the rounding.
        common: whether all prompts have the same bounds.
    """

    def __init__(self, problem: AllocationProblem, weight: FloatArray, step: FloatArray, first: int) -> None:
        self.step = step
        self.unit = float(weight.max())
        self.common = _common_bounds(problem, step, first)
        bits = (weight / self.unit).astype(np.float32).view(np.int32)
        for shift in range(23 - _MANTISSA_BITS, 24):
            key = bits >> shift
            counts = np.bincount(key)
            used = np.flatnonzero(counts)
            if self.common or len(used) * len(step) <= _TABLE_LIMIT:
                break
        position = np.zeros(len(counts), np.int32)
        position[used] = np.arange(len(used), dtype=np.int32)
        self.row: NDArray[np.int32] = position[key]
        self.bottom = _edge(used << shift) * (1 - _SLACK)
        self.top = _edge((used + 1) << shift) * (1 + _SLACK)
        available = counts[used][:, None] if self.common else self._available(problem, first)
        self._column = np.zeros(len(step), np.int64) if self.common else np.arange(len(step))
        self._suffix = np.zeros((len(used) + 1, available.shape[1]), np.int64)
        self._suffix[:-1] = np.cumsum(available[::-1], axis=0)[::-1]

    def _available(self, problem: AllocationProblem, first: int) -> IntArray:
        """(J, K) how many prompts of a bin have a step within their bounds."""
        width = len(self.step) + 1
        cells = len(self.bottom) * width
        start = np.bincount(self.row * np.int64(width) + (problem.lower - first), minlength=cells)
        stop = np.bincount(self.row * np.int64(width) + (problem.upper - first), minlength=cells)
        return np.asarray(np.cumsum((start - stop).reshape(-1, width), axis=1)[:, :-1], dtype=np.int64)

    def total(self, edge: FloatArray, threshold: float) -> int:
        """How many steps exceed the threshold if every weight were its bin's ``edge``."""
        with np.errstate(divide="ignore"):
            ratio = (threshold / self.unit) / self.step
        return int(self._suffix[np.searchsorted(edge, ratio, side="right"), self._column].sum())

    def count(self, edge: FloatArray, threshold: float) -> IntArray:
        """(J,) steps above the threshold of a prompt whose weight is its bin's ``edge``, ignoring bounds."""
        with np.errstate(divide="ignore"):
            ratio = (threshold / self.unit) / edge
        ascending = self.step[::-1]
        return np.asarray(len(self.step) - np.searchsorted(ascending, ratio, side="right"), dtype=np.int64)

    def threshold(self, edge: FloatArray, steps: int, *, above: bool) -> float:
        """With ``above`` a threshold that at most ``steps`` exceed, else one that at least ``steps`` exceed."""
        high = 2.0 * self.unit * float(self.step[0])
        low = high
        while self.total(edge, low) < steps:
            if low < 1e-300 * high:
                return high if above else 0.0
            low /= 16.0
        while high - low > _SLACK * high:
            middle = float(np.sqrt(low) * np.sqrt(high)) if high > 2 * low else (low + high) / 2
            if self.total(edge, middle) > steps:
                low = middle
            else:
                high = middle
        if not above and self.total(edge, high) == steps:
            return high
        return high if above else low


def _take_between(
    result: IntArray,
    rows: IntArray,
    reach: IntArray,
    weight: FloatArray,
    step: FloatArray,
    first: int,
    budget: int,
) -> None:
    """Raise result[rows] towards reach by the largest gains until the budget is spent; ties by row."""
    rest = budget - int(result.sum())
    if rest <= 0:
        return
    counts = reach - result[rows]
    row = np.repeat(rows, counts)
    offset = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    gains = weight[row] * step[result[row] + offset - first]
    threshold = float(np.partition(gains, len(gains) - rest)[len(gains) - rest])
    chosen = gains > threshold
    ties = np.flatnonzero(gains == threshold)[: rest - int(chosen.sum())]
    chosen[ties] = True
    result += np.bincount(row[chosen], minlength=len(result))


def _edge(bits: NDArray[np.int64]) -> FloatArray:
    """The float32 numbers of the given bit patterns, as float64."""
    return bits.astype(np.int32).view(np.float32).astype(np.float64)
