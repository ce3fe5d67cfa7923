"""Ways to divide a budget, behind one interface.

Every policy is a pure function of its arguments; ties go to the earlier prompt; sizes sum to the budget exactly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from viprl._arrays import FloatArray, IntArray
from viprl.allocation.convex import solve_convex
from viprl.allocation.exact import solve_allocation
from viprl.allocation.problem import AllocationProblem, water_fill
from viprl.allocation.relaxation import round_sizes, solve_relaxation
from viprl.errors import InvalidInputError

if TYPE_CHECKING:
    from viprl.prediction.base import Prediction
    from viprl.variance.base import VarianceModel


class Policy(ABC):
    """Divides a step's budget over its prompts: the base of every policy, a pure function without state."""

    name: str
    """Short, as in configuration files and reports."""

    @abstractmethod
    def allocate(
        self,
        prediction: Prediction,
        *,
        model: VarianceModel,
        budget: int,
        min_group_size: ArrayLike,
        max_group_size: ArrayLike,
        scale: ArrayLike | None = None,
    ) -> IntArray:
        """(B,) int64 group sizes within the bounds (scalars or (B,)) that sum to ``budget``.

        Raises:
            InvalidInputError, InfeasibleBudgetError: as in ``solve_allocation``.
        """

    def __repr__(self) -> str:
        settings = ", ".join(f"{key}={value!r}" for key, value in sorted(vars(self).items()))
        return f"{type(self).__name__}({settings})"


class VIP(Policy):
    """Variance-informed: the exact minimiser of the sum of predicted gradient variances."""

    name = "vip"

    def allocate(
        self,
        prediction: Prediction,
        *,
        model: VarianceModel,
        budget: int,
        min_group_size: ArrayLike,
        max_group_size: ArrayLike,
        scale: ArrayLike | None = None,
    ) -> IntArray:
        """See ``solve_allocation``."""
        return solve_allocation(model, prediction, budget, min_group_size, max_group_size, scale)


class Relaxed(Policy):
    """The paper's own solver: the continuous relaxation, rounded by Algorithm 2. RLOO and Dr. GRPO only."""

    name = "relaxed"

    def allocate(
        self,
        prediction: Prediction,
        *,
        model: VarianceModel,
        budget: int,
        min_group_size: ArrayLike,
        max_group_size: ArrayLike,
        scale: ArrayLike | None = None,
    ) -> IntArray:
        """See ``solve_relaxation`` and ``round_sizes``."""
        relaxed = solve_relaxation(
            model,
            prediction,
            budget,
            min_group_size,
            max_group_size,
            scale,
        )
        problem = AllocationProblem.build(len(relaxed.sizes), budget, min_group_size, max_group_size, scale)
        return round_sizes(model, prediction, relaxed.sizes, problem)


class Uniform(Policy):
    """As equal as the bounds allow: C // B each, and the C % B rollouts left over to the earlier prompts."""

    name = "uniform"

    def allocate(
        self,
        prediction: Prediction,
        *,
        model: VarianceModel,
        budget: int,
        min_group_size: ArrayLike,
        max_group_size: ArrayLike,
        scale: ArrayLike | None = None,
    ) -> IntArray:
        """Ignores the prediction but for its length."""
        problem = AllocationProblem.build(len(prediction), budget, min_group_size, max_group_size, scale)
        return water_fill(problem.budget, problem.lower, problem.upper)


class _Proportional(Policy):
    """Sizes in proportion to a weight, cut off at the bounds so that they sum to the budget, rounded by Algorithm 2."""

    def __init__(self, *, epsilon: float = 0.01) -> None:
        if not 0 < epsilon < np.inf:
            raise InvalidInputError(f"epsilon > 0 must hold, but got {epsilon}")
        self.epsilon = epsilon

    @abstractmethod
    def weights(self, prediction: Prediction) -> FloatArray:
        """(B,) positive."""

    def allocate(
        self,
        prediction: Prediction,
        *,
        model: VarianceModel,
        budget: int,
        min_group_size: ArrayLike,
        max_group_size: ArrayLike,
        scale: ArrayLike | None = None,
    ) -> IntArray:
        """``model`` and ``scale`` decide only where the rounding's left-over rollouts go."""
        problem = AllocationProblem.build(len(prediction), budget, min_group_size, max_group_size, scale)
        sizes = _proportional_sizes(self.weights(prediction), problem)
        return round_sizes(model, prediction, sizes, problem)


class InverseAccuracy(_Proportional):
    """The paper's first heuristic (Table 3): sizes in proportion to 1 - p + epsilon."""

    name = "inverse_accuracy"

    def weights(self, prediction: Prediction) -> FloatArray:
        """(B,) 1 - p + epsilon."""
        return np.asarray(1.0 - prediction.mean + self.epsilon, dtype=np.float64)


class InverseVariance(_Proportional):
    """The paper's second heuristic (Table 3): sizes in proportion to 1 / (E[p(1-p)] + epsilon)."""

    name = "inverse_variance"

    def weights(self, prediction: Prediction) -> FloatArray:
        """(B,) 1 / (E[p(1-p)] + epsilon)."""
        return np.asarray(1.0 / (prediction.bernoulli_variance + self.epsilon), dtype=np.float64)


class KnapsackRL(Policy):
    """Knapsack-RL (arXiv 2509.25849): maximise sum_q (1 - p^n - (1-p)^n) p (1-p)^2, exactly, at the predicted mean p.

    The chance of a group with both outcomes is concave in n, so marginal gains give the optimum. Prompts with p = 0 or
    p = 1 have no value at any size; they share what the others leave, as equally as possible.
    """

    name = "knapsack_rl"

    def allocate(
        self,
        prediction: Prediction,
        *,
        model: VarianceModel,
        budget: int,
        min_group_size: ArrayLike,
        max_group_size: ArrayLike,
        scale: ArrayLike | None = None,
    ) -> IntArray:
        """Uses the prediction's mean alone; ``model`` and ``scale`` do not enter."""
        problem = AllocationProblem.build(len(prediction), budget, min_group_size, max_group_size, scale).reachable()
        p = np.asarray(prediction.mean, dtype=np.float64)[:, None]
        n = problem.sizes[None, :]
        return solve_convex(problem, (p**n + (1.0 - p) ** n - 1.0) * p * np.square(1.0 - p))


def _proportional_sizes(weights: FloatArray, problem: AllocationProblem) -> FloatArray:
    """(B,) clip(t w, L, U) with t such that the total is the budget, by bisection."""
    if not len(weights):
        return weights
    low, high = 0.0, float(problem.upper.max() / weights.min())
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if np.clip(middle * weights, problem.lower, problem.upper).sum() > problem.budget:
            high = middle
        else:
            low = middle
    return np.asarray(np.clip(low * weights, problem.lower, problem.upper), dtype=np.float64)
