"""Exact allocation where every curve is convex: the largest marginal gains win.

A rollout that raises prompt q from n to n+1 saves the gain v_q(n) - v_q(n+1). On convex curves a prompt's gains fall
with n, so the C - sum L largest of all gains can be taken as they are; that is what adding one rollout at a time to the
prompt with the largest gain (a heap) does, and the result here is identical to it:

- of equal positive gains the earlier prompt's is taken first;
- rollouts that save nothing keep the sizes as equal as possible instead.

Instead of a heap, the gains' threshold is searched: by partition of all gains where these are few, else by
``threshold.solve_by_threshold``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from viprl._arrays import FloatArray, IntArray
from viprl.allocation.problem import AllocationProblem, fill_equally
from viprl.allocation.threshold import solve_by_threshold
from viprl.errors import InvalidInputError

DENSE_LIMIT = 1 << 16  # gains that are partitioned directly


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
        step[0] = step[1] if len(step) > 1 else 0.0
    if not (step[1:] <= step[:-1]).all():
        raise InvalidInputError(f"the gains f(n) - f(n+1) must fall with n, but got {step} for n = {sizes[:-1]}")
    if not left:
        return lower.copy()
    if len(problem) * len(step) <= DENSE_LIMIT or step[-1] < 0:
        n = sizes[:-1]
        steps = (n >= lower[:, None]) & (n < problem.upper[:, None])
        return _take_largest(problem, np.where(steps, weight[:, None] * step, -np.inf), left)
    return solve_by_threshold(problem, weight, step, int(sizes[0]))


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
        return fill_equally(start, start + rooms, problem.budget)
    result += above
    rest = problem.budget - int(result.sum())
    ties = (gains == threshold).sum(axis=1)
    result += np.clip(rest - (np.cumsum(ties) - ties), 0, ties)
    return result


def _leave_infinity(problem: AllocationProblem, weight: FloatArray, size: int, left: int) -> tuple[IntArray, int]:
    """Raise prompts of the infinite size by one where they have weight; the largest weights first if not all can."""
    lower = problem.lower.copy()
    rows = np.flatnonzero((lower == size) & (problem.upper > size) & (weight > 0))
    if len(rows) > left:
        rows = rows[np.argsort(-weight[rows], kind="stable")[:left]]
    lower[rows] += 1
    return lower, left - len(rows)
