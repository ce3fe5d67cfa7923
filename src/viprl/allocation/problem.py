"""The allocation problem, validated once.

    minimise  sum_q scale_q v_q(n_q)   subject to  sum_q n_q = C,  L_q <= n_q <= U_q,  n_q integer,

or, with costs per rollout, sum_q cost_q n_q <= C.

Notation: B prompts, C budget, L/U bounds, K sizes from the smallest L to the largest U.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from viprl._arrays import FloatArray, IntArray
from viprl.errors import InfeasibleBudgetError, InvalidInputError

if TYPE_CHECKING:
    from viprl.variance.base import VarianceModel


@dataclass(frozen=True)
class AllocationProblem:
    """Budget, bounds, scale and costs of B prompts, known to be consistent and feasible.

    Attributes:
        budget: C, rollouts of the step (or cost units, with ``cost``).
        lower, upper: (B,) bounds of the group sizes.
        scale: (B,) factors of the variances, or None for equal ones.
        cost: (B,) cost of one rollout in whole units, or None: the budget is then spent exactly.
    """

    budget: int
    lower: IntArray
    upper: IntArray
    scale: FloatArray | None = None
    cost: IntArray | None = None

    @classmethod
    def build(
        cls,
        batch: int,
        budget: int,
        min_group_size: ArrayLike,
        max_group_size: ArrayLike,
        scale: ArrayLike | None = None,
        cost: ArrayLike | None = None,
    ) -> AllocationProblem:
        """Validate; scalars stand for all prompts.

        Raises:
            InvalidInputError: wrong shapes, sizes below one, lower > upper, negative or non-finite scale, costs that
                are not positive integers.
            InfeasibleBudgetError: no sizes within the bounds fit the budget.
        """
        lower = _whole("min_group_size", min_group_size, batch)
        upper = _whole("max_group_size", max_group_size, batch)
        if batch and lower.min() < 1:
            raise InvalidInputError(f"min_group_size >= 1 must hold, but got {lower.min()}")
        if (lower > upper).any():
            row = int(np.argmax(lower > upper))
            raise InvalidInputError(
                "min_group_size <= max_group_size must hold, but got "
                f"(min_group_size={lower[row]}, max_group_size={upper[row]}) for prompt {row}"
            )
        problem = cls(
            int(_whole("budget", budget, 1)[0]),
            lower,
            upper,
            None if scale is None else _non_negative("scale", scale, batch),
            None if cost is None else _costs(cost, batch),
        )
        problem._check_budget()
        return problem

    def __len__(self) -> int:
        return len(self.lower)

    @property
    def sizes(self) -> IntArray:
        """(K,) all sizes that some prompt may have."""
        if not len(self):
            return np.zeros(0, np.int64)
        return np.arange(int(self.lower.min()), int(self.upper.max()) + 1)

    def curves(self, model: VarianceModel, prediction: Any) -> FloatArray:
        """(B, K) scaled variances at ``sizes``.

        Raises:
            InvalidInputError: the model gives NaN or minus infinity within a prompt's bounds.
        """
        values = np.array(model.curve(prediction, self.sizes), dtype=np.float64)
        if values.shape != (len(self), len(self.sizes)):
            raise InvalidInputError(
                f"curve(prediction, sizes) must be (B, K) = {(len(self), len(self.sizes))}, but {model.name} gave "
                f"{values.shape}"
            )
        allowed = self.allowed
        if not (values[allowed] > -np.inf).all():
            raise InvalidInputError(f"variances must be numbers, but {model.name} gave NaN or minus infinity")
        if self.scale is not None:
            with np.errstate(invalid="ignore"):
                values = np.where(self.scale[:, None] > 0, values * self.scale[:, None], 0.0)
        return values

    @property
    def allowed(self) -> NDArray[np.bool_]:
        """(B, K) whether a size is within the prompt's bounds."""
        sizes = self.sizes
        return (sizes >= self.lower[:, None]) & (sizes <= self.upper[:, None])

    def reachable(self) -> AllocationProblem:
        """The same problem with upper bounds that the budget can reach while all others have their lower ones: curves
        are then as long as they need be, however large the bounds that were given."""
        if not len(self) or self.cost is not None:
            return self
        most = self.budget - int(self.lower.sum())
        if int((self.upper - self.lower).max()) <= most:
            return self
        return dataclasses.replace(self, upper=np.minimum(self.upper, self.lower + most))

    def _check_budget(self) -> None:
        if self.cost is not None:
            least = int((self.cost * self.lower).sum())
            if self.budget < least:
                raise InfeasibleBudgetError(
                    "sum of cost * min_group_size <= budget must hold, but got "
                    f"(sum of cost * min_group_size={least}, budget={self.budget}) for {len(self)} prompts"
                )
            return
        least, most = int(self.lower.sum()), int(self.upper.sum())
        if not least <= self.budget <= most:
            raise InfeasibleBudgetError(
                "prompts * min_group_size <= budget <= prompts * max_group_size must hold, but got "
                f"(prompts={len(self)}, {_span('min_group_size', self.lower)}, {_span('max_group_size', self.upper)}, "
                f"budget={self.budget}): between {least} and {most} rollouts are possible"
            )


def water_fill(total: int, lower: IntArray, upper: IntArray) -> IntArray:
    """(B,) integers within the bounds with the given total, as equal as possible; extras to the earlier prompts.

    ``total`` must lie between the sums of the bounds.
    """
    if not len(lower):
        return lower.copy()
    low, high = int(lower.min()), int(upper.max())
    while low < high:  # largest level whose clipped sum does not exceed the total
        level = (low + high + 1) // 2
        if int(np.clip(level, lower, upper).sum()) <= total:
            low = level
        else:
            high = level - 1
    sizes: IntArray = np.minimum(np.maximum(lower, low), upper)
    rest = total - int(sizes.sum())
    growing = np.flatnonzero((sizes == low) & (sizes < upper))[:rest]
    sizes[growing] += 1
    return sizes


def fill_equally(start: IntArray, stop: IntArray, total: int) -> IntArray:
    """Raise the sizes that may grow for free from start to at most stop, as equal as possible."""
    result = start.copy()
    free = np.flatnonzero(stop > start)
    rest = total - int(result.sum()) + int(result[free].sum())
    result[free] = water_fill(rest, start[free], stop[free])
    return result


def _span(name: str, values: IntArray) -> str:
    if not len(values):
        return f"{name}=none"
    low, high = int(values.min()), int(values.max())
    return f"{name}={low}" if low == high else f"{name}={low}..{high}"


def _whole(name: str, values: ArrayLike, batch: int) -> IntArray:
    array = np.asarray(values)
    if array.dtype.kind not in "iuf" or array.ndim > 1:
        raise InvalidInputError(f"`{name}` must be whole numbers, one or {batch}, but got {values!r}")
    if array.ndim == 1 and len(array) != batch:
        raise InvalidInputError(f"`{name}` must be one number or have length {batch}, but got length {len(array)}")
    if array.dtype.kind == "f" and not (np.isfinite(array).all() and (array == np.floor(array)).all()):
        raise InvalidInputError(f"`{name}` must be whole numbers, but got {values!r}")
    if array.ndim == 0:  # a view that costs no memory
        return np.broadcast_to(np.int64(array), (batch,))
    return np.array(array, dtype=np.int64)


def _non_negative(name: str, values: ArrayLike, batch: int) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.shape not in ((), (batch,)):
        raise InvalidInputError(f"`{name}` must be one number or have shape ({batch},), but got {array.shape}")
    if array.size and not (array.min() >= 0 and array.max() < np.inf):
        raise InvalidInputError(
            f"`{name}` must be finite and non-negative, but got {int(np.isnan(array).sum())} NaN, "
            f"minimum {array.min()}, maximum {array.max()}"
        )
    return np.broadcast_to(array, (batch,)).copy()


def _costs(values: ArrayLike, batch: int) -> IntArray:
    cost = _whole("cost", values, batch)
    if batch and cost.min() < 1:
        raise InvalidInputError(f"cost >= 1 must hold (whole units per rollout), but got {cost.min()}")
    return cost
