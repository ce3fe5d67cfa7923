"""The price of a rollout in a stream of prompts, so that the budget is kept although there is no batch.

Every prompt is a row of unit prices u_1 >= u_2 >= ... >= u_U: what its j-th rollout is worth at most. At the price y
it gets as many rollouts as have u_j >= y, which minimises v(n) + y n (or maximises V(n) - y n), so at a fixed price a
stream is the optimum of the batch that it makes up (Lagrange). The price is that at which the last W prompts would have
used the budget: an order statistic of their unit prices. It depends on beliefs at the moment of the offer alone, never
on when results come back, so bursts, delays and lost results cannot make it swing.

What sampling error leaves is the debt b = (rollouts given) - g (prompts offered), g the budget of an offer. It is paid
back over ``HORIZON`` prompts by aiming at g - b/H, and kept within +-D by force, D = ``REACH`` mean groups:

    b + n - g <= D  and  b + n - g >= -D  are demanded of every n that is given.

Both can always be met, as L <= G <= U (and, where prompts may be left out, 0 <= g <= U): at b <= D the choice n <= g
is allowed, at b >= -D the choice n >= g is. So over any m offers in a row the rollouts differ from g m by at most 2 D,
and from the start by at most D, whatever prompts come: within one per cent over 500 mean groups where 2 D <= 5 G.

Notation: G mean group size, g = G / (prompts offered for each one that is kept), U the largest group, W window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from viprl._arrays import FloatArray

WINDOW = 128  # mean groups whose unit prices make the price
HORIZON = 16.0  # mean groups over which a debt is paid back
REACH = 2.5  # mean groups that a debt reaches at most
REFRESH = 4  # mean groups from one price to the next
MOST_ROWS = 1024


class StreamPrice:
    """Price and debt; all of it is state.

    Args:
        mean_group_size: G.
        offers: prompts offered for each that is kept, G / g.
        upper: U, the length of a row of unit prices.
        least: the smallest group, L where no prompt may be left out, else 0.
    """

    def __init__(self, mean_group_size: float, offers: float, upper: int, least: int) -> None:
        self.due = mean_group_size / offers
        self.least = least
        self.reach = REACH * mean_group_size
        self._horizon = HORIZON * offers
        self._every = max(1, round(REFRESH * offers))
        self._rows = np.zeros((min(MOST_ROWS, math.ceil(WINDOW * offers)), upper))
        self.price = math.inf
        self.debt = 0.0
        self.offered = 0
        self._since = 0

    @property
    def target(self) -> float:
        """Rollouts that the next offers are to get on average."""
        return self.due - self.debt / self._horizon

    def meet(self, units: FloatArray) -> None:
        """Take in the unit prices (U,) of the prompt that is offered now; moves the price now and then."""
        self._rows[self.offered % len(self._rows)] = units
        self.offered += 1
        self._since += 1
        if self._since >= min(self._every, self.offered):
            self._since = 0
            self._clear()

    def _clear(self) -> None:
        """The price at which the window's prompts use the target."""
        known = self._rows[: self.offered].ravel()
        count = min(max(round(self.target * min(self.offered, len(self._rows))), 1), known.size - 1)
        place = known.size - count
        refused, bought = np.partition(known, (place - 1, place))[place - 1 : place + 1].tolist()
        self.price = (refused + bought) / 2 if bought < math.inf else max(2 * refused, 1e-300)

    def bounded(self, size: int, lower: int, upper: int) -> int:
        """The group size nearest to ``size``, 0 (where allowed) or in [lower, upper], that keeps the debt in reach."""
        most = math.floor(self.reach - self.debt + self.due + 1e-9)
        fewest = math.ceil(self.due - self.debt - self.reach - 1e-9)
        if fewest <= size <= most:
            return size
        if size > most:
            return most if most >= lower else self.least
        return min(max(fewest, lower), upper)

    def give(self, size: int) -> None:
        """Book the rollouts of an offer."""
        self.debt += size - self.due

    def state_dict(self) -> dict[str, Any]:
        return {
            "price": self.price,
            "debt": self.debt,
            "offered": self.offered,
            "since": self._since,
            "rows": self._rows[: self.offered].copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.price, self.debt = float(state["price"]), float(state["debt"])
        self.offered, self._since = int(state["offered"]), int(state["since"])
        self._rows[: len(state["rows"])] = state["rows"]


def concave(gains: FloatArray) -> FloatArray:
    """The slopes of the least concave function above the one with these slopes: pooled until none grows."""
    if not (np.diff(gains) > 0).any():
        return gains
    pools: list[list[float]] = []
    for gain in gains.tolist():
        pools.append([gain, 1.0])
        while len(pools) > 1 and pools[-1][0] > pools[-2][0]:
            value, size = pools.pop()
            last = pools[-1]
            last[0] = (last[0] * last[1] + value * size) / (last[1] + size)
            last[1] += size
    return np.repeat([value for value, _ in pools], [int(size) for _, size in pools])
