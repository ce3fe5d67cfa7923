"""Exact allocation where every curve is convex: the largest marginal gains win.

A rollout that raises prompt q from n to n+1 saves the gain v_q(n) - v_q(n+1). On convex curves a prompt's gains fall
with n, so the C - sum L largest of all gains can be taken as they are; that is what adding one rollout at a time to the
prompt with the largest gain (a heap) does, and the result here is identical to it:

- of equal positive gains the earlier prompt's is taken first;
- rollouts that save nothing keep the sizes as equal as possible instead.

Instead of a heap, the gains' threshold is searched: by partition of all gains where they fit in memory, else by
bracketing the threshold on a sample of the prompts and partitioning only the gains inside the bracket.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from viprl.allocation.problem import AllocationProblem, FloatArray, IntArray, water_fill
from viprl.errors import InvalidInputError

DENSE_LIMIT = 1 << 18  # gains that are partitioned directly
_SAMPLE = 1 << 13
_MARGIN = 1e-9  # relative width that covers the rounding of one product


def solve_convex(problem: AllocationProblem, curves: FloatArray) -> IntArray:
    """(B,) exact sizes from curves (B, K) over ``problem.sizes``, convex within each prompt's bounds.

    Infinite values must be where the curve starts; resolving them comes first, earlier prompts first.
    """
    gains = np.full((len(problem), max(curves.shape[1] - 1, 0)), -np.inf)
    allowed = problem.allowed
    steps = allowed[:, 1:] & allowed[:, :-1]
    with np.errstate(invalid="ignore"):
        fall = curves[:, :-1] - curves[:, 1:]
    fall[np.isnan(fall)] = np.inf  # infinity less infinity: still to be resolved
    gains[steps] = fall[steps]
    return _take_largest(problem, gains, problem.budget - int(problem.lower.sum()))


def solve_separable(problem: AllocationProblem, weight: FloatArray, gain: Callable[[IntArray], FloatArray]) -> IntArray:
    """(B,) exact sizes for v_q(n) = weight_q f(n), given gain(n) = f(n) - f(n+1), non-increasing on the bounds' range.

    gain(1) may be infinite (RLOO): groups of one with a positive weight then come first, largest weights first.
    """
    if not len(problem):
        return problem.lower.copy()
    lower = problem.lower
    left = problem.budget - int(lower.sum())
    sizes = problem.sizes
    step = np.asarray(gain(sizes[:-1]), dtype=np.float64)
    if len(step) and np.isinf(step[0]):
        lower, left = _leave_infinity(problem, weight, int(sizes[0]), left)
        problem = AllocationProblem(problem.budget, lower, problem.upper)
        step = np.where(np.isinf(step), 0.0 if not len(step) > 1 else step[1], step)
    if not left:
        return lower.copy()
    if len(problem) * len(step) <= DENSE_LIMIT:
        n = sizes[:-1]
        steps = (n >= lower[:, None]) & (n < problem.upper[:, None])
        gains = np.where(steps, weight[:, None] * step[None, :], -np.inf)
        return _take_largest(problem, gains, left)
    return _search(problem, weight, step, int(sizes[0]), left)


def is_convex(curves: FloatArray, problem: AllocationProblem) -> bool:
    """Whether every curve is finite and convex within its prompt's bounds, without tolerance."""
    allowed = problem.allowed
    if not np.isfinite(curves[allowed]).all():
        return False
    if curves.shape[1] < 3:
        return True
    safe = np.where(allowed, curves, 0.0)
    gains = safe[:, :-1] - safe[:, 1:]
    inside = allowed[:, 2:] & allowed[:, 1:-1] & allowed[:, :-2]
    return bool((gains[:, 1:] <= gains[:, :-1])[inside].all())


def _take_largest(problem: AllocationProblem, gains: FloatArray, count: int) -> IntArray:
    """Add the ``count`` largest gains (B, K-1) to the lower bounds; -infinity marks steps outside the bounds."""
    result = problem.lower.copy()
    if count <= 0:
        return result
    flat = gains.reshape(-1)
    threshold = float(np.partition(flat, flat.size - count)[flat.size - count])
    above = (gains > threshold).sum(axis=1)
    if threshold == 0.0:
        rooms = (gains == 0.0).sum(axis=1)
        start = result + above
        return _fill_equally(start, start + rooms, problem.budget)
    result += above
    rest = problem.budget - int(result.sum())
    ties = (gains == threshold).sum(axis=1)
    result += np.clip(rest - (np.cumsum(ties) - ties), 0, ties)
    return result


def _fill_equally(start: IntArray, stop: IntArray, total: int) -> IntArray:
    """Raise the sizes that may grow for free from start to at most stop, as equal as possible."""
    result = start.copy()
    free = np.flatnonzero(stop > start)
    rest = total - int(result.sum()) + int(result[free].sum())
    result[free] = water_fill(rest, start[free], stop[free])
    return result


def _leave_infinity(problem: AllocationProblem, weight: FloatArray, size: int, left: int) -> tuple[IntArray, int]:
    """Raise prompts of the infinite size by one where they have weight; the largest weights first if not all can."""
    lower = problem.lower.copy()
    rows = np.flatnonzero((lower == size) & (problem.upper > size) & (weight > 0))
    if len(rows) > left:
        rows = rows[np.argsort(-weight[rows], kind="stable")[:left]]
    lower[rows] += 1
    return lower, left - len(rows)


def _search(problem: AllocationProblem, weight: FloatArray, step: FloatArray, first: int, left: int) -> IntArray:
    """``_take_largest`` without forming all gains: n_q as a function of the threshold, and a bracket around it."""
    if (np.diff(step) > 0).any() or step[-1] < 0:
        raise InvalidInputError(f"gains must fall and stay >= 0, but got {step}")
    live = (weight > 0) & (problem.upper > problem.lower)
    capacity = int((problem.upper - problem.lower)[live].sum())
    if left >= capacity:
        start = np.where(live, problem.upper, problem.lower)
        return _fill_equally(start, problem.upper.copy(), problem.budget)

    ascending = step[::-1].copy()

    def size_at(threshold: float) -> IntArray:
        """(B,) sizes after all steps whose gain exceeds the threshold."""
        with np.errstate(divide="ignore"):
            ratio = threshold / weight
        above = len(step) - np.searchsorted(ascending, ratio, side="right")
        return np.clip(first + above, problem.lower, problem.upper)

    low, high = _bracket(problem, weight, step, first, left)
    below, above = size_at(high * (1 + _MARGIN)), size_at(low * (1 - _MARGIN))
    while int(below.sum()) > problem.budget:
        low, high = high, high * (high / low) ** 2 * (1 + _MARGIN)
        above, below = below, size_at(high * (1 + _MARGIN))
    while int(above.sum()) < problem.budget:
        low, high = low * (low / high) ** 2 * (1 - _MARGIN), low
        below, above = above, size_at(low * (1 - _MARGIN))
    return _resolve(weight, step, first, below, above, problem.budget)


def _bracket(
    problem: AllocationProblem, weight: FloatArray, step: FloatArray, first: int, left: int
) -> tuple[float, float]:
    """A likely bracket of the threshold, from every s-th prompt's gains."""
    rows = slice(0, None, max(1, len(problem) // _SAMPLE))
    n = first + np.arange(len(step))
    steps = (n >= problem.lower[rows, None]) & (n < problem.upper[rows, None])
    gains = np.sort((weight[rows, None] * step[None, :])[steps])
    gains = gains[gains > 0]
    if not len(gains):
        largest = float(weight.max() * step[0])
        return largest / 2, largest
    share = left / max(int((problem.upper - problem.lower).sum()), 1)
    rank = len(gains) - share * int(steps.sum())
    slack = 4.0 * np.sqrt(len(gains))
    low = gains[int(np.clip(rank - slack, 0, len(gains) - 1))]
    high = gains[int(np.clip(rank + slack, 0, len(gains) - 1))]
    return float(low), float(max(high, low * (1 + 1e-6)))


def _resolve(
    weight: FloatArray, step: FloatArray, first: int, below: IntArray, above: IntArray, budget: int
) -> IntArray:
    """From sizes below (sum <= C) and above (sum >= C): take the largest of the gains in between."""
    result = below.copy()
    rest = budget - int(below.sum())
    if rest == 0:
        return result
    open_rows = np.flatnonzero(above > below)
    counts = (above - below)[open_rows]
    row = np.repeat(open_rows, counts)
    offset = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    gains = weight[row] * step[below[row] + offset - first]
    threshold = float(np.partition(gains, len(gains) - rest)[len(gains) - rest])
    chosen = gains > threshold
    ties = np.flatnonzero(gains == threshold)[: rest - int(chosen.sum())]
    chosen[ties] = True
    np.add.at(result, row[chosen], 1)
    return result
