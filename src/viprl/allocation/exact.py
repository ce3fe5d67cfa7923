"""The exact solver: one entry, which picks the method that the curves allow."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from viprl._arrays import FloatArray, IntArray
from viprl.allocation.convex import is_convex, solve_convex, solve_separable
from viprl.allocation.dynamic import solve_dynamic
from viprl.allocation.problem import AllocationProblem
from viprl.errors import InvalidInputError

if TYPE_CHECKING:
    from viprl.prediction.base import Prediction
    from viprl.variance.base import VarianceModel


class InexactAllocationWarning(UserWarning):
    """The problem is too large for the exact method; the message bounds how far the result is from the optimum."""


@dataclass(frozen=True)
class Solution:
    """Group sizes with a certificate.

    Attributes:
        group_sizes: (B,) integers.
        objective: sum of the scaled variances.
        lower_bound: no feasible group sizes have a smaller objective (beyond rounding).
        exact: whether group_sizes is proven optimal; then lower_bound == objective.
        method: "marginal gains" or "dynamic programming".
    """

    group_sizes: IntArray
    objective: float
    lower_bound: float
    exact: bool
    method: str


def solve_allocation(
    model: VarianceModel,
    prediction: Prediction | ArrayLike,
    budget: int,
    min_group_size: ArrayLike,
    max_group_size: ArrayLike,
    scale: ArrayLike | None = None,
    cost: ArrayLike | None = None,
) -> IntArray:
    """Group sizes that minimise sum_q scale_q v_q(n_q) subject to sum n_q = budget and L_q <= n_q <= U_q, exactly.

    Args:
        model: the variance model.
        prediction: of B prompts; for RLOO and Dr. GRPO a (B,) array of E[p(1-p)] will do.
        budget: C, rollouts of the step; with ``cost``, cost units (tokens, say) that must not be exceeded.
        min_group_size, max_group_size: L and U, one number or (B,).
        scale: (B,) factors of the variances, such as each prompt's sigma_Z^2.
        cost: (B,) whole cost of one rollout of each prompt.

    Returns:
        (B,) int64. Ties go to the earlier prompt; rollouts that help nobody keep the sizes as equal as possible.

    Raises:
        InvalidInputError: arguments that break a rule, NaN among them.
        InfeasibleBudgetError: no sizes within the bounds fit the budget.

    Convex curves are solved by marginal gains. Others (Dr. GRPO from L = 1, GRPO, any model with costs) by dynamic
    programming over what a Lagrangian bound leaves open; where even that is too large (see ``dynamic.CELL_LIMIT``) an
    InexactAllocationWarning gives the bound on the loss. Dr. GRPO below L = 3 warns.

    >>> from viprl.variance import RLOO
    >>> solve_allocation(RLOO(), [0.25, 0.25, 0.01, 0.01], budget=16, min_group_size=3, max_group_size=8).tolist()
    [5, 5, 3, 3]
    """
    problem, weight = _prepare(model, prediction, budget, min_group_size, max_group_size, scale, cost)
    if weight is not None and problem.cost is None and _convex_for(model, problem):
        return solve_separable(problem, weight, _gain(model))
    solution = _solve_curves(model, prediction, problem)
    if not solution.exact:
        warnings.warn(
            f"{len(problem)} prompts with budget {problem.budget} are too many for the exact method with "
            f"{model.name}; the sum of variances is {solution.objective:.6g} and cannot be below "
            f"{solution.lower_bound:.6g}",
            InexactAllocationWarning,
            stacklevel=2,
        )
    return solution.group_sizes


def solve_with_bound(
    model: VarianceModel,
    prediction: Prediction | ArrayLike,
    budget: int,
    min_group_size: ArrayLike,
    max_group_size: ArrayLike,
    scale: ArrayLike | None = None,
    cost: ArrayLike | None = None,
) -> Solution:
    """As ``solve_allocation`` (bounds, scale and cost (B,) each), with the objective and a lower bound; never warns."""
    problem, weight = _prepare(model, prediction, budget, min_group_size, max_group_size, scale, cost)
    if weight is not None and problem.cost is None and _convex_for(model, problem):
        sizes = solve_separable(problem, weight, _gain(model))
        value = objective(model, prediction, sizes, problem.scale)
        return Solution(sizes, value, value, True, "marginal gains")
    return _solve_curves(model, prediction, problem)


def objective(
    model: VarianceModel, prediction: Prediction | ArrayLike, sizes: ArrayLike, scale: FloatArray | None = None
) -> float:
    """sum_q scale_q v_q(n_q) for sizes and scale (B,); prompts of scale zero count nothing."""
    values = model.variance(prediction, sizes)
    if scale is not None:
        with np.errstate(invalid="ignore"):
            values = np.where(scale > 0, values * scale, 0.0)
    return float(values.sum())


def _prepare(
    model: VarianceModel,
    prediction: Any,
    budget: int,
    min_group_size: ArrayLike,
    max_group_size: ArrayLike,
    scale: ArrayLike | None,
    cost: ArrayLike | None,
) -> tuple[AllocationProblem, FloatArray | None]:
    """The validated problem and, for separable models, the scaled weights."""
    weight = np.asarray(model.weight(prediction), dtype=np.float64) if hasattr(model, "weight") else None
    batch = len(prediction) if weight is None else len(weight)
    problem = AllocationProblem.build(batch, budget, min_group_size, max_group_size, scale, cost).reachable()
    check = getattr(model, "check_min_group_size", None)
    if check is not None and batch:
        check(int(problem.lower.min()))
    if weight is not None and batch and not weight.min() >= 0:
        raise InvalidInputError(f"weights must be non-negative numbers, but {model.name} gave {weight[~(weight >= 0)]}")
    if weight is not None and problem.scale is not None:
        weight = weight * problem.scale
    return problem, weight


def _convex_for(model: VarianceModel, problem: AllocationProblem) -> bool:
    return model.convex_from is not None and (not len(problem) or int(problem.lower.min()) >= model.convex_from)


def _gain(model: Any) -> Any:
    """n -> f(n) - f(n+1) of a separable model."""
    if hasattr(model, "marginal_gain"):
        return model.marginal_gain
    return lambda n: np.asarray(model.factor(n)) - np.asarray(model.factor(np.asarray(n) + 1))


def _solve_curves(model: VarianceModel, prediction: Any, problem: AllocationProblem) -> Solution:
    curves = problem.curves(model, prediction)
    if problem.cost is None and (_convex_for(model, problem) or is_convex(curves, problem)):
        sizes = solve_convex(problem, curves)
        value = _sum(curves, problem, sizes)
        return Solution(sizes, value, value, True, "marginal gains")
    result = solve_dynamic(problem, curves)
    value = _sum(curves, problem, result.group_sizes)
    bound = value if result.exact else min(result.lower_bound, value)
    return Solution(result.group_sizes, value, bound, result.exact, "dynamic programming")


def _sum(curves: FloatArray, problem: AllocationProblem, sizes: IntArray) -> float:
    if not len(sizes):
        return 0.0
    return float(curves[np.arange(len(sizes)), sizes - problem.sizes[0]].sum())
