"""The guard: is the realised gradient variance under our groups above what uniform groups would have given?

For a group with n rewards, the sample variance s^2 estimates the reward variance a without bias whatever n was, because
n was chosen before the rollouts. So one step's rollouts estimate, on the same noise, the variance sum_q a_q f(n_q) of
*any* allocation: the one that was used, uniform groups, and the one that the policy would have used while the guard
holds it back. How a step's rewards become such estimates is the variance model's to say (``VarianceModel.realised``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from viprl._arrays import FloatArray

LOUDEST = 10.0


@dataclass(frozen=True)
class GuardState:
    """What the guard knows.

    Attributes:
        ratio: discounted variance under the policy's groups (used or not), relative to uniform's.
        standard_error: of ``ratio``; infinite while a single live group is all there is.
        used_ratio: the same as ``ratio`` for the groups that were used, which are uniform ones while the guard holds.
        holding: the verdict.
    """

    ratio: float
    standard_error: float
    used_ratio: float
    holding: bool


class Guard:
    """Falls back to uniform groups while the policy's realised variance ratio is above one.

    The ratio is that of discounted sums over steps; its standard error (delta method) is that of the rollouts' noise
    for the prompts as they are, which is what "realised" means. Holding starts when
    ``ratio - start * error > 1`` and ends when ``ratio + end * error < 1``: quick to hold, since uniform groups cost
    little.

    A step counts at most ``LOUDEST`` times the mean of the steps before it: rewards whose scale jumps for once would
    drown all others for a hundred steps. Steps beyond any number are left out.

    One step of faith is refused too: a batch of mostly cold prompts gets uniform groups until unequal ones have been
    tried on paper once. An over-confident predictor does its worst there (a ratio above 2), a good one wins least.
    """

    def __init__(self, keep: float = 0.9, start: float = 1.0, end: float = 1.0) -> None:
        self.keep, self.start, self.end = keep, start, end
        self.holding = False
        self.tested = False  # whether any unequal allocation was measured yet
        self._sums = np.zeros(3)  # discounted variance of the policy's groups, of uniform ones, of those that were used
        self._weight = 0.0  # discounted number of steps in the sums
        self._products = np.zeros(4)  # doubly discounted (co)variances of the first two (pp, pu, uu); uniform's squares

    def replaces(self, cold_share: float) -> bool:
        """Whether a batch with this share of cold prompts gets uniform groups instead of the policy's."""
        return self.holding or (not self.tested and cold_share > 0.5)

    def update(self, values: FloatArray, noise: FloatArray, *, unequal: bool = True, held: bool = False) -> None:
        """Take in one step.

        Args:
            values: (2, B) estimated variances under the policy's sizes (used or not) and under uniform ones; prompts
                with NaN or infinity are left out.
            noise: (2, 2, B) covariances of these estimates; see ``viprl.variance.Realised``.
            unequal: whether the two allocations differ at all.
            held: whether the step ran with uniform groups instead of the policy's.
        """
        fine = np.isfinite(values).all(axis=0)
        policy, uniform = values[:, fine]
        if uniform.sum() <= 0:
            return  # a dead batch says nothing about the allocation
        step = np.array([policy.sum(), uniform.sum(), (uniform if held else policy).sum()])
        with np.errstate(over="ignore", invalid="ignore"):
            (pp, pu), (_, uu) = noise[:, :, fine].sum(axis=2)
            products = np.array([pp, pu, uu, float(uniform @ uniform)])
        if not (np.isfinite(step).all() and np.isfinite(products).all()):
            return
        loudness = step[1] * self._weight / (LOUDEST * self._sums[1]) if self._weight else 0.0
        quieter = 1.0 / max(1.0, loudness)
        self.tested = self.tested or unequal
        self._weight = self.keep * self._weight + 1.0
        self._sums = self.keep * self._sums + quieter * step
        self._products = self.keep**2 * self._products + quieter**2 * products
        state = self.state()
        if self.holding:
            self.holding = not state.ratio + self.end * state.standard_error < 1
        else:
            self.holding = state.ratio - self.start * state.standard_error > 1

    def state(self) -> GuardState:
        """Ratios of 1 with infinite error before the first informative step."""
        policy, uniform, used = self._sums
        if uniform <= 0:
            return GuardState(1.0, float("inf"), 1.0, self.holding)
        ratio = policy / uniform
        pp, pu, uu, squares = self._products
        spread = max(pp - 2 * ratio * pu + ratio**2 * uu, 0.0)
        # a single live group fits its own ratio without error, whatever the truth
        error = float(np.sqrt(spread) / uniform) if uniform**2 >= 2 * squares else float("inf")
        return GuardState(float(ratio), error, float(used / uniform), self.holding)

    def state_dict(self) -> dict[str, Any]:
        """What the next step needs, as plain numbers and arrays."""
        return {
            "holding": self.holding,
            "tested": self.tested,
            "weight": self._weight,
            "sums": self._sums,
            "products": self._products,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a ``state_dict``."""
        self.holding, self.tested = bool(state["holding"]), bool(state["tested"])
        self._weight = float(state["weight"])
        self._sums, self._products = np.array(state["sums"], float), np.array(state["products"], float)
