"""The paper's continuous relaxation (Theorems 5.1 and 5.2) with Algorithm 2's rounding, as the reference.

    minimise  sum_q a_q f(n_q)  subject to  sum_q n_q = C,  L_q <= n_q <= U_q,  n_q real.

Stationarity gives -a_q f'(n_q) = y for a common multiplier y, cut off at the bounds; the total falls with y, so y is
found by bisection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from viprl._arrays import FloatArray, IntArray
from viprl.allocation.convex import is_convex, solve_convex, solve_separable
from viprl.allocation.problem import AllocationProblem
from viprl.errors import InvalidInputError

if TYPE_CHECKING:
    from viprl.prediction.base import Prediction
    from viprl.variance.base import VarianceModel


@runtime_checkable
class RelaxableModel(Protocol):
    """What the relaxation needs of a separable model v_q(n) = weight_q f(n) for real n."""

    name: str
    convex_from: int | None

    def weight(self, prediction: Any) -> FloatArray:
        """(B,) weights."""
        ...

    def factor(self, n: ArrayLike) -> FloatArray:
        """f(n)."""
        ...

    def marginal_gain(self, n: ArrayLike) -> FloatArray:
        """f(n) - f(n+1)."""
        ...

    def size_at_slope(self, slope: ArrayLike) -> FloatArray:
        """The n at which -f'(n) = slope."""
        ...


@dataclass(frozen=True)
class Relaxation:
    """Optimum of the continuous relaxation.

    Attributes:
        sizes: (B,) real group sizes that sum to the budget.
        multiplier: y, the variance that one more rollout would save.
        lower_bound: dual value at y: no feasible sizes, real or integer, do better.
    """

    sizes: FloatArray
    multiplier: float
    lower_bound: float


def solve_relaxation(
    model: VarianceModel,
    prediction: Prediction | ArrayLike,
    budget: int,
    min_group_size: ArrayLike,
    max_group_size: ArrayLike,
    scale: ArrayLike | None = None,
) -> Relaxation:
    """Real group sizes by bisection on the multiplier; bounds and scale are numbers or (B,).

    Raises:
        InvalidInputError: a model without a slope, or bounds below the model's convex range (Dr. GRPO: L >= 3; RLOO:
            L >= 2).
        InfeasibleBudgetError: no sizes within the bounds fit the budget.
    """
    if not isinstance(model, RelaxableModel):
        raise InvalidInputError(f"the relaxation needs a model with `size_at_slope` (RLOO, DrGRPO), but got {model!r}")
    weight = model.weight(prediction)
    problem = AllocationProblem.build(len(weight), budget, min_group_size, max_group_size, scale)
    if problem.scale is not None:
        weight = weight * problem.scale
    start = int(problem.lower.min()) if len(problem) else 3
    if model.convex_from is None or start < model.convex_from or not np.isfinite(model.factor(start)):
        raise InvalidInputError(
            f"the relaxation of {model.name} needs finite convex curves from min_group_size on, but got "
            f"min_group_size={start}"
        )
    return _bisect(model, weight, problem)


def _bisect(model: RelaxableModel, weight: FloatArray, problem: AllocationProblem) -> Relaxation:
    def sizes_at(multiplier: float) -> FloatArray:
        slope = np.divide(multiplier, weight, out=np.full(len(weight), np.inf), where=weight > 0)
        return np.clip(model.size_at_slope(slope), problem.lower, problem.upper)

    if not len(weight) or not weight.max() > 0:
        return Relaxation(_blend(problem.lower, problem.upper, problem.budget), 0.0, 0.0)
    high = float(weight.max() * model.marginal_gain(problem.lower.min()) * 4)
    low = high
    while sizes_at(high).sum() > problem.budget * (1 + 1e-12) and high < 1e300:
        high *= 4
    while sizes_at(low).sum() < problem.budget and low > 1e-300:
        low /= 4
    for _ in range(200):
        middle = float(np.sqrt(low) * np.sqrt(high))
        if not low < middle < high:
            break
        if sizes_at(middle).sum() > problem.budget:
            low = middle
        else:
            high = middle
    below, above = sizes_at(high), sizes_at(low)
    sizes = _blend(below, np.maximum(above, below), problem.budget)
    if sizes.sum() < problem.budget - 1e-6 * problem.budget:  # only prompts that gain nothing have room left
        sizes = _blend(sizes, problem.upper, problem.budget)
        high = 0.0
    inner = below if high else sizes
    bound = float((weight * model.factor(inner)).sum()) + high * (float(inner.sum()) - problem.budget)
    return Relaxation(sizes, high, bound)


def _blend(below: ArrayLike, above: ArrayLike, total: float) -> FloatArray:
    """Between two vectors, the point with the given total (or the nearer end)."""
    lo, hi = np.asarray(below, dtype=np.float64), np.asarray(above, dtype=np.float64)
    room = float((hi - lo).sum())
    share = 0.0 if room <= 0 else float(np.clip((total - lo.sum()) / room, 0.0, 1.0))
    return np.asarray(lo + share * (hi - lo), dtype=np.float64)


def round_sizes(model: VarianceModel, prediction: Any, sizes: ArrayLike, problem: AllocationProblem) -> IntArray:
    """Algorithm 2: floor, then one rollout at a time to the prompt with the largest decrease of its variance.

    Args:
        sizes: (B,) real sizes within the bounds, whose floors sum to at most the budget.
    """
    floor = np.floor(np.asarray(sizes, dtype=np.float64) + 1e-9).astype(np.int64)
    floor = np.clip(floor, problem.lower, problem.upper)
    if floor.sum() > problem.budget:
        raise InvalidInputError(f"the floors must not exceed the budget, but got {floor.sum()} > {problem.budget}")
    rest = AllocationProblem(problem.budget, floor, problem.upper, problem.scale).reachable()
    smallest = int(floor.min()) if len(floor) else 1
    if hasattr(model, "weight") and model.convex_from is not None and smallest >= model.convex_from:
        weight = model.weight(prediction) * (1.0 if problem.scale is None else problem.scale)
        return solve_separable(rest, weight, model.marginal_gain)  # type: ignore[attr-defined]
    curves = rest.curves(model, prediction)
    if is_convex(curves, rest):
        return solve_convex(rest, curves)
    return _one_at_a_time(rest, curves)


def _one_at_a_time(problem: AllocationProblem, curves: FloatArray) -> IntArray:
    """Greedy additions by the next step's decrease, for curves that are not convex."""
    result = problem.lower.copy()
    first, rows = int(problem.sizes[0]), np.arange(len(problem))
    column = result - first
    with np.errstate(invalid="ignore"):
        steps = np.concatenate([curves[:, :-1] - curves[:, 1:], np.full((len(problem), 1), -np.inf)], axis=1)
    steps = np.where(np.isnan(steps), 0.0, steps)
    gain = np.where(result < problem.upper, steps[rows, column], -np.inf)
    for _ in range(problem.budget - int(result.sum())):
        row = int(np.argmax(gain))
        result[row] += 1
        gain[row] = steps[row, result[row] - first] if result[row] < problem.upper[row] else -np.inf
    return result
