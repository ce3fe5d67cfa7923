"""Ways to choose among candidates, behind one interface.

Every policy is a pure function of the candidates and a random generator (which the caller makes from a counter, so that
every process draws the same). All share one frame: the price decides how many candidates are kept; overdue ones and a
floor of uniformly drawn ones come first; the policy picks the others; the budget is divided over all kept ones by the
value's marginal gains.

Notation: K candidates, C budget, L and U bounds, m kept candidates, V value of a group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from viprl._arrays import FloatArray, IntArray
from viprl.errors import ConfigurationError, InfeasibleBudgetError, InvalidInputError
from viprl.selection.price import count_range, decide, fill, largest
from viprl.selection.value import SaturatingValue

LEFT, CHOSEN, EXPLORED, OVERDUE = range(4)
"""Why a candidate was left out or kept; the order of ``REASONS``."""
REASONS = ("left out", "chosen for its value", "drawn to explore", "waited too long")


@dataclass(frozen=True)
class Candidates:
    """What a policy chooses from.

    Attributes:
        value: of K candidates.
        budget, lower, upper: C, L, U.
        nominal: prompts that the step would have without selection.
        waited: (K,) passes since each candidate last got rollouts or, if it never did, was first met.
        keep: how many to keep where that is given; None leaves it to the policy.
    """

    value: SaturatingValue
    budget: int
    lower: int
    upper: int
    nominal: int
    waited: FloatArray
    keep: int | None = None

    def __len__(self) -> int:
        return len(self.value)


@dataclass(frozen=True)
class Selection:
    """Which candidates got rollouts.

    Attributes:
        sizes: (K,) n_q, 0 where left out; sums to the budget.
        reason: (K,) index into ``REASONS``.
        weight: (K,) what a kept prompt's gradient is multiplied by beside the others'; mean 1 over the kept ones.
        break_price: (K,) price a rollout above which the candidate is not worth keeping.
        price: what the step's last rollout was worth.
    """

    sizes: IntArray
    reason: IntArray
    weight: FloatArray
    break_price: FloatArray
    price: float


class SelectionPolicy(ABC):
    """Args:
        floor: share of a step's prompts that is drawn uniformly.
        max_rest: passes after which a candidate is offered rollouts whatever it is worth; None never.

    Raises:
        ConfigurationError: a share outside [0, 1], or max_rest below 1.
    """

    name: str
    rests = True
    """Whether ``max_rest`` has a meaning."""
    prefers = True
    """Whether some candidates are better than others to it; where all are alike the step is then a uniform one."""

    def __init__(self, *, floor: float = 0.1, max_rest: float | None = 4.0) -> None:
        if not 0 <= floor <= 1:
            raise ConfigurationError(f"0 <= floor <= 1 must hold, but got {floor}")
        if max_rest is not None and not max_rest >= 1:
            raise ConfigurationError(f"max_rest >= 1 (or None) must hold, but got {max_rest}")
        self.floor, self.max_rest = floor, max_rest

    @abstractmethod
    def pick(self, worth: FloatArray, count: int, draws: np.random.Generator) -> IntArray:
        """``count`` places among candidates whose break prices are ``worth``, in any order."""

    def count(self, candidates: Candidates, kept_at_the_price: int) -> int:
        """How many candidates to keep; what the price keeps, by default."""
        return kept_at_the_price

    def _count(self, candidates: Candidates, kept_at_the_price: int) -> int:
        keep = candidates.keep
        if keep is None:
            return self.count(candidates, kept_at_the_price)
        if not (keep <= len(candidates) and keep * candidates.lower <= candidates.budget <= keep * candidates.upper):
            raise InfeasibleBudgetError(
                "prompts <= candidates and prompts * min_group_size <= budget <= prompts * max_group_size must hold, "
                f"but got (prompts={keep}, candidates={len(candidates)}, min_group_size={candidates.lower}, "
                f"max_group_size={candidates.upper}, budget={candidates.budget})"
            )
        return keep

    def select(self, candidates: Candidates, draws: np.random.Generator) -> Selection:
        """Who gets rollouts, and how many.

        Raises:
            InfeasibleBudgetError: no number of candidates fits the budget and the bounds.
        """
        decision = decide(candidates.value, candidates.budget, candidates.lower, candidates.upper)
        if self.prefers and alike(decision.break_price):
            return UniformSelection(floor=self.floor, max_rest=self.max_rest).select(candidates, draws)
        count = self._count(candidates, int(np.count_nonzero(decision.sizes)))
        reason = np.full(len(candidates), LEFT, dtype=np.int64)
        explored = min(int(np.floor(self.floor * count + draws.random())), count)
        if self.max_rest is not None:
            waiting = np.flatnonzero(candidates.waited >= self.max_rest)
            order = np.argsort(-candidates.waited[waiting], kind="stable")
            reason[waiting[order][: count // 2]] = OVERDUE
        taken = int(np.count_nonzero(reason))
        free = np.flatnonzero(reason == LEFT)
        explored = min(max(explored - taken, 0), len(free), count - taken)
        reason[draws.choice(free, explored, replace=False, shuffle=False)] = EXPLORED
        free = np.flatnonzero(reason == LEFT)
        reason[free[self.pick(decision.break_price[free], count - taken - explored, draws)]] = CHOSEN
        kept = np.flatnonzero(reason != LEFT)
        sizes = np.zeros(len(candidates), np.int64)
        sizes[kept] = self.divide(candidates, kept)
        return Selection(sizes, reason, self.weigh(candidates, kept), decision.break_price, decision.price)

    def divide(self, candidates: Candidates, kept: IntArray) -> IntArray:
        """(m,) group sizes of the kept candidates; by their marginal gains, by default."""
        return fill(candidates.value[kept], candidates.budget, candidates.lower, candidates.upper)

    def weigh(self, candidates: Candidates, kept: IntArray) -> FloatArray:
        """(K,) weights beside each other; equal, by default."""
        weight = np.zeros(len(candidates))
        weight[kept] = 1.0
        return weight

    def __repr__(self) -> str:
        settings = ", ".join(f"{key}={value!r}" for key, value in sorted(vars(self).items()))
        return f"{type(self).__name__}({settings})"


class Top(SelectionPolicy):
    """The candidates worth most: the decision problem's own solution, but for the floor and the overdue ones."""

    name = "top"

    def pick(self, worth: FloatArray, count: int, draws: np.random.Generator) -> IntArray:
        """By break price, ties to the earlier."""
        return largest(worth, count)


class Learnability(SelectionPolicy):
    """Drawn without replacement, with chances that grow with the break price to the power of ``sharpness``.

    1 draws in proportion to the value, large powers approach ``top``. A draw keeps what a ranking loses: prompts of
    middling value are trained now and then, and no prompt is trained over and over.
    """

    name = "learnability"

    def __init__(self, *, sharpness: float = 4.0, floor: float = 0.1, max_rest: float | None = 4.0) -> None:
        super().__init__(floor=floor, max_rest=max_rest)
        if not 0 < sharpness < np.inf:
            raise ConfigurationError(f"0 < sharpness < infinity must hold, but got {sharpness}")
        self.sharpness = sharpness

    def pick(self, worth: FloatArray, count: int, draws: np.random.Generator) -> IntArray:
        """The largest of log chance + Gumbel noise: the law of drawing one after the other without replacement."""
        return largest(self.sharpness * np.log(np.maximum(worth, 1e-300)) + draws.gumbel(size=len(worth)), count)


class UniformSelection(SelectionPolicy):
    """As many prompts as the step would have without selection, each with the same chance and the same group."""

    name = "uniform"
    prefers = False

    def count(self, candidates: Candidates, kept_at_the_price: int) -> int:
        """The nominal number, as far as the bounds allow."""
        least, most = count_range(len(candidates), candidates.budget, candidates.lower, candidates.upper)
        return min(max(candidates.nominal, least), most)

    def pick(self, worth: FloatArray, count: int, draws: np.random.Generator) -> IntArray:
        """With the same chance each."""
        return draws.choice(len(worth), count, replace=False, shuffle=False)

    def divide(self, candidates: Candidates, kept: IntArray) -> IntArray:
        """As equal as possible, extras to the earlier."""
        least, rest = divmod(candidates.budget, len(kept))
        return least + (np.arange(len(kept)) < rest).astype(np.int64)


class Unbiased(SelectionPolicy):
    """Drawn with known chances and weighted by their inverse: in expectation the mean gradient of all candidates.

    The chance of q is proportional to the root of its estimate's second moment, a_q (1/(n-1) + r_q), which makes the
    sum's variance smallest (Neyman), cut off at 1 and at ``floor`` times the uniform chance from below. Systematic
    sampling in random order keeps the number of prompts fixed. There is no other exploration and nobody is overdue:
    both would bend the chances.
    """

    name = "unbiased"
    rests = False

    def __init__(self, *, floor: float = 0.1) -> None:
        super().__init__(floor=floor, max_rest=None)

    def chances(self, candidates: Candidates, count: int) -> FloatArray:
        """(K,) inclusion probabilities with the sum ``count``."""
        if not 0 < count <= len(candidates):
            raise InvalidInputError(f"0 < count <= candidates must hold, but got ({count}, {len(candidates)})")
        size = candidates.budget / count
        moment = candidates.value.slope * (1.0 / max(size - 1.0, 1e-9) + candidates.value.saturation)
        return inclusion(np.sqrt(moment), count, self.floor)

    def select(self, candidates: Candidates, draws: np.random.Generator) -> Selection:
        """See the class; the groups are equal."""
        decision = decide(candidates.value, candidates.budget, candidates.lower, candidates.upper)
        if alike(decision.break_price):
            return UniformSelection(floor=0.0, max_rest=None).select(candidates, draws)
        count = self._count(candidates, int(np.count_nonzero(decision.sizes)))
        chances = self.chances(candidates, count)
        kept = np.sort(systematic(chances, draws))
        reason = np.full(len(candidates), LEFT, dtype=np.int64)
        reason[kept] = CHOSEN
        sizes, weight = np.zeros(len(candidates), np.int64), np.zeros(len(candidates))
        sizes[kept] = candidates.budget // len(kept)
        sizes[kept[: candidates.budget % len(kept)]] += 1
        weight[kept] = count / len(candidates) / chances[kept]
        return Selection(sizes, reason, weight, decision.break_price, decision.price)

    def pick(self, worth: FloatArray, count: int, draws: np.random.Generator) -> IntArray:
        """Not by worth: ``select`` draws with exact chances."""
        raise NotImplementedError


def alike(worth: FloatArray) -> bool:
    """Whether candidates with these break prices differ by rounding at most."""
    return bool(worth.max() - worth.min() <= 1e-9 * worth.max())


def inclusion(weights: FloatArray, count: int, floor: float) -> FloatArray:
    """(K,) chances min(1, max(t w, floor count/K)), of sum ``count``; uniform if all w are 0."""
    total = len(weights)
    if count >= total or not weights.max(initial=0.0) > 0:
        return np.full(total, min(count / total, 1.0))
    least = floor * count / total
    ordered = np.sort(weights / weights.max())
    positive = total - int(np.searchsorted(ordered, 0.0, side="right"))
    if positive + (total - positive) * least < count:  # too few with any weight: the others share the rest
        return np.where(weights > 0, 1.0, (count - positive) / (total - positive))
    sums = np.concatenate([[0.0], np.cumsum(ordered)])

    def regions(t: float) -> tuple[int, int]:  # those before the first are at the floor, those from the second on at 1
        return int(np.searchsorted(ordered, least / t, side="right")), int(np.searchsorted(ordered, 1.0 / t))

    low, high = 0.0, total / float(ordered[total - positive])
    for _ in range(200):
        middle = (low + high) / 2
        first, last = regions(middle)
        if first * least + middle * (sums[last] - sums[first]) + total - last > count:
            high = middle
        else:
            low = middle
    return np.asarray(np.clip(high * (weights / weights.max()), least, 1.0), dtype=np.float64)


def systematic(chances: FloatArray, draws: np.random.Generator) -> IntArray:
    """Rows drawn with the given chances (K,): one uniform offset, steps of one along the sums in random order."""
    order = draws.permutation(len(chances))
    sums = np.cumsum(chances[order])
    count = int(np.rint(sums[-1]))
    sums *= count / sums[-1]
    marks = draws.random() + np.arange(count)
    return order[np.minimum(np.searchsorted(sums, marks, side="right"), len(order) - 1)]
