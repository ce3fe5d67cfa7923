"""Exact allocation for any curves and costs: dynamic programming over what a Lagrangian bound leaves open.

With a price y per cost unit, every prompt alone would choose the size that minimises v_q(n) + y cost_q n. The sum of
these minima less y C bounds the optimum from below for any y (weak duality; at the best y it is the optimum over the
curves' lower convex envelopes). The regret of size n,

    r_q(n) = v_q(n) + y cost_q n - min_m (v_q(m) + y cost_q m) >= 0,

adds to the bound: a feasible solution costs  bound + sum_q r_q(n_q) + y (C - sum_q cost_q n_q)  exactly. So with any
feasible solution in hand, whose distance from the bound is the gap, only sizes with r_q(n) <= gap can be part of a
better one, and only partial sums of regrets <= gap. Near the best y most prompts keep one or two sizes, and the
dynamic programme over the cost's deviation from the priced choice is small. It is exact: the states that are left out
cannot belong to an optimum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from viprl._arrays import FloatArray, IntArray
from viprl.allocation.problem import AllocationProblem, water_fill
from viprl.errors import InfeasibleBudgetError

CELL_LIMIT = 1 << 26  # table cells (two bytes each) beyond which the bounded solution is returned instead
_PER_MOVE = 8  # prompts per move that are solved first, for a better feasible solution
_TOLERANCE = 1e-12


@dataclass(frozen=True)
class DynamicSolution:
    """Group sizes (B,), a lower bound of the optimum and whether the sizes are proven optimal."""

    group_sizes: IntArray
    lower_bound: float
    exact: bool


def solve_dynamic(problem: AllocationProblem, curves: FloatArray) -> DynamicSolution:
    """Minimise the sum of curves (B, K) over ``problem.sizes`` under the budget: an equality, or <= with costs.

    Raises:
        InfeasibleBudgetError: only sizes of infinite variance fit the budget.
    """
    if not len(problem):
        return DynamicSolution(problem.lower.copy(), 0.0, True)
    values = np.where(problem.allowed, curves, np.inf)
    cost = np.ones(len(problem), np.int64) if problem.cost is None else problem.cost
    spend = cost[:, None] * problem.sizes[None, :]
    _check_finite(problem, values, spend)
    below, price = _best_prices(values, spend, problem)
    regret, choice, bound = _priced(values, spend, price, problem.budget)
    start = _feasible(values, spend, below, price, problem)
    rows = np.arange(len(problem))
    tolerance = _TOLERANCE * (float(np.abs(values[rows, start]).sum()) + abs(price) * problem.budget)
    chosen, gap, exact = start, float(values[rows, start].sum()) - bound, False
    for core in (_most_open(regret, choice), rows):
        if gap <= tolerance:
            exact = True
            break
        found = _search(regret, spend, choice, price, problem, gap + tolerance, core)
        exact = found is not None and core is rows
        if found is not None and (exact or float(values[rows, found].sum()) - bound < gap):
            chosen, gap = found, float(values[rows, found].sum()) - bound
    return DynamicSolution(_break_ties(problem, values, chosen), bound, exact)


def _most_open(regret: FloatArray, choice: NDArray[np.intp]) -> NDArray[np.intp]:
    """For each move away from the priced choice (one size more, two less, ...) the rows that regret it least."""
    columns = regret.shape[1]
    if len(regret) <= _PER_MOVE:
        return np.arange(len(regret))
    chosen = np.zeros(len(regret), bool)
    for move in (*range(1 - columns, 0), *range(1, columns)):
        column = choice + move
        inside = (column >= 0) & (column < columns)
        moved = np.where(inside, regret[np.arange(len(regret)), np.clip(column, 0, columns - 1)], np.inf)
        rows = np.argpartition(moved, _PER_MOVE)[:_PER_MOVE]
        chosen[rows[np.isfinite(moved[rows])]] = True
    return np.flatnonzero(chosen)


def _check_finite(problem: AllocationProblem, values: FloatArray, spend: IntArray) -> None:
    finite = np.isfinite(values)
    least = int(np.where(finite, spend, np.iinfo(np.int64).max).min(axis=1).sum()) if finite.any(axis=1).all() else None
    most = int(np.where(finite, spend, -1).max(axis=1).sum())
    if least is None or least > problem.budget or (problem.cost is None and most < problem.budget):
        raise InfeasibleBudgetError(
            "every prompt must get a size of finite variance, but the budget and the bounds do not allow it: "
            f"the cheapest such sizes take {least}, the largest {most}, and the budget is {problem.budget}"
        )


def _priced(
    values: FloatArray, spend: IntArray, price: float, budget: int
) -> tuple[FloatArray, NDArray[np.intp], float]:
    """Regrets (B, K), each prompt's own choice (B,) and the lower bound at a price."""
    priced = values + price * spend
    choice = priced.argmin(axis=1)
    best = priced[np.arange(len(priced)), choice]
    return priced - best[:, None], choice, float(best.sum()) - price * budget


def _spent(values: FloatArray, spend: IntArray, price: float) -> int:
    choice = (values + price * spend).argmin(axis=1)
    return int(spend[np.arange(len(spend)), choice].sum())


def _best_prices(values: FloatArray, spend: IntArray, problem: AllocationProblem) -> tuple[float, float]:
    """Neighbouring prices by bisection: at the first the prompts' own choices exceed the budget (unless both are the
    same), at the second they keep it. At least 0 with costs."""
    finite = np.isfinite(values)
    span = float(values[finite].max() - values[finite].min()) + 1e-300
    low, high = (-2.0 * span if problem.cost is None else 0.0), 2.0 * span
    if problem.cost is not None and _spent(values, spend, 0.0) <= problem.budget:
        return 0.0, 0.0
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if _spent(values, spend, middle) > problem.budget:
            low = middle
        else:
            high = middle
    return low, high


def _feasible(
    values: FloatArray, spend: IntArray, below: float, price: float, problem: AllocationProblem
) -> NDArray[np.intp]:
    """A good feasible choice of columns (B,).

    From the choice at ``price`` the prompts move, in order, to their choice at the neighbouring price ``below`` as
    long as the budget lasts; what is then left goes to the single changes that raise the priced sum least.
    """
    rows = np.arange(len(values))
    choice = np.asarray((values + price * spend).argmin(axis=1))
    if int(spend[rows, choice].sum()) > problem.budget:  # the price is rounded: start from the cheapest finite sizes
        choice = np.asarray(np.isfinite(values).argmax(axis=1))
    wider = np.asarray((values + below * spend).argmin(axis=1))
    rise = np.maximum(spend[rows, wider] - spend[rows, choice], 0)
    fits = np.cumsum(rise) <= problem.budget - int(spend[rows, choice].sum())
    choice = np.where(fits & (rise > 0), wider, choice)
    left = problem.budget - int(spend[rows, choice].sum())
    while left > 0:
        extra = spend - spend[rows, choice][:, None]
        now = values[rows, choice][:, None]
        usable = (extra > 0) & (extra <= left) & np.isfinite(values)
        if problem.cost is not None:
            usable &= values < now
        if not usable.any():
            break
        change = np.where(usable, values - now + price * extra, np.inf)
        row, column = divmod(int(np.argmin(change)), values.shape[1])
        left -= int(extra[row, column])
        choice[row] = column
    return choice


def _search(
    regret: FloatArray,
    spend: IntArray,
    choice: NDArray[np.intp],
    price: float,
    problem: AllocationProblem,
    gap: float,
    core: NDArray[np.intp],
) -> NDArray[np.intp] | None:
    """The columns of least total regret among those that fit, only the rows of ``core`` leaving the priced choice.

    None where the table would be too large, or where nothing within the gap fits.

    State: the spending's deviation from the priced choice. Prompts are added from the last to the first, so that
    reading the table back starts with the first prompt, which gets the largest of equally good sizes.
    """
    rows = np.arange(len(regret))
    shift = spend - spend[rows, choice][:, None]
    target = problem.budget - int(spend[rows, choice].sum())
    open_rows = core[(regret[core] <= gap).sum(axis=1) > 1]
    origin, best = 0, np.zeros(1)
    table: list[tuple[int, int, NDArray[np.intp], NDArray[np.uint16]]] = []
    cells = 0
    for row in open_rows[::-1]:
        columns = np.flatnonzero(regret[row] <= gap)[::-1]
        moves = shift[row, columns]
        width = len(best) + int(moves.max() - moves.min())
        cells += width
        if cells > CELL_LIMIT:
            return None
        merged = np.full(width, np.inf)
        taken = np.zeros(width, np.uint16)
        low = origin + int(moves.min())
        for rank, (column, move) in enumerate(zip(columns, moves, strict=True)):
            at = origin + int(move) - low
            candidate = best + regret[row, column]
            window = merged[at : at + len(best)]
            better = candidate < window
            window[better] = candidate[better]
            taken[at : at + len(best)][better] = rank
        keep = np.flatnonzero(merged <= gap)
        first, last = int(keep[0]), int(keep[-1]) + 1
        best = np.where(merged[first:last] <= gap, merged[first:last], np.inf)
        origin = low + first
        table.append((int(row), origin, columns, taken[first:last]))
    return _read_back(table, best, origin, choice, shift, target, price, exact_fit=problem.cost is None)


def _read_back(
    table: list[tuple[int, int, NDArray[np.intp], NDArray[np.uint16]]],
    best: FloatArray,
    origin: int,
    choice: NDArray[np.intp],
    shift: IntArray,
    target: int,
    price: float,
    *,
    exact_fit: bool,
) -> NDArray[np.intp] | None:
    """Follow the table from the best reachable state; None where no state fits the budget."""
    deviations = origin + np.arange(len(best))
    total = best + price * (target - deviations)
    usable = deviations == target if exact_fit else deviations <= target
    total = np.where(usable, total, np.inf)
    if not np.isfinite(total).any():
        return None
    state = int(deviations[int(np.argmin(total))])
    result = choice.copy()
    for row, start, columns, taken in reversed(table):
        column = columns[taken[state - start]]
        result[row] = column
        state -= int(shift[row, column])
    return result


def _break_ties(problem: AllocationProblem, values: FloatArray, chosen: NDArray[np.intp]) -> IntArray:
    """Among prompts of identical curves, bounds and costs give the larger sizes to the earlier ones; and prompts whose
    curves are flat share their rollouts as equally as possible."""
    sizes = problem.sizes[chosen].astype(np.int64)
    cost = np.ones(len(problem), np.int64) if problem.cost is None else problem.cost
    key = np.column_stack([values, cost])
    _, group = np.unique(key, axis=0, return_inverse=True)
    order = np.lexsort((np.arange(len(sizes)), group.reshape(-1)))
    ranked = np.lexsort((-sizes, group.reshape(-1)))
    result = sizes.copy()
    result[order] = sizes[ranked]
    if problem.cost is None:
        allowed = problem.allowed
        top = np.where(allowed, values, -np.inf).max(axis=1)
        flat = np.flatnonzero(top == values.min(axis=1))
        result[flat] = water_fill(int(result[flat].sum()), problem.lower[flat], problem.upper[flat])
    return result
