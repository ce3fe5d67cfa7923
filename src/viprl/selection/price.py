"""The decision: which candidates get rollouts, and how many each, for one budget.

    maximise  sum_q V_q(n_q)   subject to  sum_q n_q = C,  n_q in {0} or [L, U], integer.

V_q is concave from L on and jumps there, so the problem is solved by a price per rollout: at the price y a candidate
takes the n that maximises V_q(n) - y n, and nothing where even that is negative, which is where y exceeds its break
price max_n V_q(n)/n. Ranked by break price, the kept candidates are a prefix; how long a prefix is best is searched
around the price at which the budget is met, and within a prefix the largest marginal gains are taken.

For any m kept candidates and any price y, sum V <= y C + (sum of the m largest t_q), t_q = max over n of V_q(n) - y n
(weak duality). Prefixes that this bound excludes need not be tried. Where all candidates share one saturation the best
m candidates are the m first, so the result is exact; else the best bound says how far it can be from the optimum.

Notation: K candidates, C budget, L and U bounds, m kept candidates, y price.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from viprl._arrays import FloatArray, IntArray
from viprl.errors import InfeasibleBudgetError, InvalidInputError
from viprl.selection.value import SaturatingValue

TRIED = 48  # prefixes tried at most
WORK = 1 << 19  # candidates that these may hold together


@dataclass(frozen=True)
class Decision:
    """Attributes:
    sizes: (K,) n_q, 0 where left out; sums to the budget.
    value: sum of V_q(n_q).
    bound: no feasible sizes are worth more (beyond rounding); equal to ``value`` where that is proven optimal.
    price: y, what the last rollout was worth.
    break_price: (K,) the price above which each candidate is left out.
    """

    sizes: IntArray
    value: float
    bound: float
    price: float
    break_price: FloatArray


def count_range(candidates: int, budget: int, lower: int, upper: int) -> tuple[int, int]:
    """The fewest and most candidates among which the budget can be divided.

    Raises:
        InvalidInputError: bounds out of order.
        InfeasibleBudgetError: no number of candidates fits.
    """
    if not 1 <= lower <= upper:
        raise InvalidInputError(
            f"1 <= min_group_size <= max_group_size must hold, but got ({lower}, {upper}) of (min, max)"
        )
    least, most = -(-budget // upper), min(candidates, budget // lower)
    if budget < 1 or not 1 <= least <= most:
        raise InfeasibleBudgetError(
            "some number m <= candidates of groups with m * min_group_size <= budget <= m * max_group_size must exist, "
            f"but got (candidates={candidates}, min_group_size={lower}, max_group_size={upper}, budget={budget})"
        )
    return least, most


def decide(value: SaturatingValue, budget: int, lower: int, upper: int) -> Decision:
    """The best group sizes, 0 where a candidate is left out; ties go to the earlier candidate.

    Raises:
        InvalidInputError, InfeasibleBudgetError: see ``count_range``.
    """
    least, most = count_range(len(value), budget, lower, upper)
    broken = value.break_price(lower, upper)
    order = largest(broken, most)
    ranked = value[order]
    price = _clearing_price(ranked, broken[order], budget, lower, upper)
    common = bool(value.saturation.min() == value.saturation.max())
    net = _net(ranked, price, lower, upper)
    if not common:  # the best m need not be the first m, nor even among the ranked
        net = np.sort(net)[::-1]
        if most < len(value):
            spare = broken[order[-1]] - price  # V_q(n) <= n * break price
            net = np.maximum(net, (upper if spare > 0 else lower) * spare)
    bounds = (price * budget + np.cumsum(net))[least - 1 :]  # of the best m candidates, m = least, ..., most
    promising = largest(bounds, max(2, min(TRIED, WORK // least)))
    best, kept, sizes, limit = -np.inf, 0, np.zeros(0, np.int64), -np.inf
    for place in promising:
        limit = float(bounds[place])
        if limit <= best + 1e-12 * abs(best):
            break
        m = least + int(place)
        found = fill(ranked[:m], budget, lower, upper)
        worth = float(ranked[:m].at(found).sum())
        if worth > best:
            best, kept, sizes = worth, m, found
    proven = common and (limit <= best + 1e-12 * abs(best) or len(promising) == len(bounds))
    whole = np.zeros(len(value), np.int64)
    whole[order[:kept]] = sizes
    return Decision(whole, best, best if proven else max(best, float(bounds.max())), price, broken)


def fill(value: SaturatingValue, budget: int, lower: int, upper: int) -> IntArray:
    """(m,) sizes in [lower, upper] that maximise sum V_q(n_q) with every candidate kept: the largest gains win.

    Raises:
        InfeasibleBudgetError: m * lower <= budget <= m * upper does not hold.
    """
    count = len(value)
    if not count * lower <= budget <= count * upper:
        raise InfeasibleBudgetError(
            "m * min_group_size <= budget <= m * max_group_size must hold, but got "
            f"(m={count}, min_group_size={lower}, max_group_size={upper}, budget={budget})"
        )
    high = max(float(value.gain(max(lower, 1)).max(initial=0.0)), 1e-300) * 2
    low = 0.0
    above = np.full(count, lower, np.int64)  # sizes at a price that is too high
    below = np.full(count, upper, np.int64)  # sizes at a price that is low enough
    for _ in range(80):
        left = int((below - above).sum())
        if left <= 4 * count or high - low <= 1e-15 * high:
            break
        middle = np.sqrt(low * high) if low > 0 else high / 64
        if low == 0 and middle < 1e-280:
            break
        sizes = value.size_at(middle, lower, upper)
        if int(sizes.sum()) > budget:
            low, below = middle, np.maximum(sizes, above)
        else:
            high, above = middle, np.maximum(sizes, above)
    return _take_gains(value, above, np.maximum(below, above), budget)


def _take_gains(value: SaturatingValue, start: IntArray, stop: IntArray, budget: int) -> IntArray:
    """Raise sizes from start to at most stop by the largest gains until the budget is spent; ties to the smaller."""
    rest = budget - int(start.sum())
    result = start.copy()
    if rest <= 0:
        return result
    room = stop - start
    row = np.repeat(np.arange(len(start)), room)
    size = start[row] + np.arange(len(row)) - np.repeat(np.cumsum(room) - room, room)
    gains = value[row].gain(size)
    order = np.lexsort((row, size, -gains))[:rest]
    result += np.bincount(row[order], minlength=len(result))
    return result


def _clearing_price(ranked: SaturatingValue, broken: FloatArray, budget: int, lower: int, upper: int) -> float:
    """A price at which demand meets the budget, and just above which it does not."""

    @functools.cache
    def demand(price: float) -> int:
        kept = int(np.searchsorted(-broken, -price, side="right"))
        return int(ranked[:kept].size_at(price, lower, upper).sum())

    high = low = 2.0 * float(broken[0]) or 1.0
    while demand(low) < budget and low > 1e-250:
        high, low = low, low / 8.0
    # what a bound loses by the price's last digits is at most the interval's length times its range of demand
    while (high - low) * max(demand(low) - demand(high), 1) > 1e-14 * high * budget:
        middle = float(np.sqrt(low * high))
        if not low < middle < high:
            break
        if demand(middle) >= budget:
            low = middle
        else:
            high = middle
    return low


def _net(value: SaturatingValue, price: float, lower: int, upper: int) -> FloatArray:
    sizes = value.size_at(price, lower, upper)
    return np.asarray(value.at(sizes) - price * sizes, dtype=np.float64)


def largest(values: FloatArray, count: int) -> IntArray:
    """Positions of the ``count`` largest values, largest first, ties to the earlier."""
    if count >= len(values):
        return np.argsort(-values, kind="stable")
    least = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > least)
    picked = np.concatenate([above, np.flatnonzero(values == least)[: count - len(above)]])
    return picked[np.lexsort((picked, -values[picked]))]
