"""The guard: is the realised gradient variance under our groups above what uniform groups would have given?

For a group with n rewards, the unbiased sample variance a_hat (k (n - k) / (n (n - 1)) for k successes) estimates the
reward variance a whatever n was, because n was chosen before the rollouts. So one step's rollouts estimate, without
bias and on the same noise, the variance sum_q a_q f(n_q) of *any* allocation: the one that was used, uniform groups,
and the one that the policy would have used while the guard holds it back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viprl._arrays import FloatArray


@dataclass(frozen=True)
class GuardState:
    """What the guard knows: the discounted ratio of the policy's variance to uniform's, its standard error, verdict."""

    ratio: float
    standard_error: float
    holding: bool


class Guard:
    """Falls back to uniform groups while the policy's realised variance ratio is above one.

    The ratio is that of discounted sums over steps; its standard error (delta method) is that of the rollouts' noise
    for the prompts as they are, which is what "realised" means. Holding starts when
    ``ratio - start * error > 1`` and ends when ``ratio + end * error < 1``: quick to hold, since uniform groups cost
    little.

    One step of faith is refused too: a batch of mostly cold prompts gets uniform groups until unequal ones have been
    tried on paper once. An over-confident predictor does its worst there (a ratio above 2), a good one wins least.
    """

    def __init__(self, keep: float = 0.9, start: float = 1.0, end: float = 1.0) -> None:
        self.keep, self.start, self.end = keep, start, end
        self.holding = False
        self.tested = False  # whether any unequal allocation was measured yet
        self._sums = np.zeros(2)  # discounted variance of the policy, of uniform
        self._products = np.zeros(3)  # doubly discounted (co)variances of the two sums: pp, pu, uu

    def replaces(self, cold_share: float) -> bool:
        """Whether a batch with this share of cold prompts gets uniform groups instead of the policy's."""
        return self.holding or (not self.tested and cold_share > 0.5)

    def update(
        self,
        a_hat: FloatArray,
        policy_sizes: NDArray[np.int64],
        uniform_sizes: NDArray[np.int64],
        factor: Callable[[FloatArray], FloatArray],
        noise: FloatArray | None = None,
    ) -> None:
        """Take in one step.

        Args:
            a_hat: (B,) unbiased reward variances; NaN where a group had fewer than two rewards.
            policy_sizes: (B,) group sizes that the policy wanted (used or not).
            uniform_sizes: (B,) uniform group sizes for the same budget.
            factor: f(n) of the variance model, vectorised; prompts where it is not finite are left out.
            noise: (B,) estimates of Var(a_hat), single ones may be negative; ``a_hat**2``, an upper bound in the mean,
                by default.
        """
        f, u = factor(policy_sizes.astype(np.float64)), factor(uniform_sizes.astype(np.float64))
        fine = np.isfinite(a_hat) & np.isfinite(f) & np.isfinite(u)
        a, f, u = a_hat[fine], f[fine], u[fine]
        if a @ u <= 0:
            return  # a dead batch says nothing about the allocation
        self.tested = self.tested or not np.array_equal(policy_sizes, uniform_sizes)
        spread = a**2 if noise is None else noise[fine]
        self._sums = self.keep * self._sums + np.array([a @ f, a @ u])
        products = np.array([spread @ (f * f), spread @ (f * u), spread @ (u * u)])
        self._products = self.keep**2 * self._products + products
        state = self.state()
        if self.holding:
            self.holding = not state.ratio + self.end * state.standard_error < 1
        else:
            self.holding = state.ratio - self.start * state.standard_error > 1

    def state(self) -> GuardState:
        """Ratio 1 with infinite error before the first informative step."""
        ours, uniform = self._sums
        if uniform <= 0:
            return GuardState(1.0, float("inf"), self.holding)
        ratio = ours / uniform
        pp, pu, uu = self._products
        spread = max(pp - 2 * ratio * pu + ratio**2 * uu, 0.0)
        return GuardState(float(ratio), float(np.sqrt(spread) / uniform), self.holding)

    def state_dict(self) -> dict[str, Any]:
        return {"holding": self.holding, "tested": self.tested, "sums": self._sums, "products": self._products}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.holding, self.tested = bool(state["holding"]), bool(state["tested"])
        self._sums, self._products = np.array(state["sums"], float), np.array(state["products"], float)


def bernoulli_noise(successes: FloatArray, rollouts: FloatArray) -> FloatArray:
    """(B,) unbiased estimates of Var(a_hat) for a_hat = k (n - k) / (n (n - 1)), given the success probability.

    Var(a_hat) = E[a_hat^2] - (p (1 - p))^2, and the last term has the unbiased estimate
    k (k - 1) (n - k) (n - k - 1) / (n (n - 1) (n - 2) (n - 3)). Below n = 4, where there is none, a_hat^2 stands in.
    """
    k, n = successes, rollouts
    f = n - k
    with np.errstate(divide="ignore", invalid="ignore"):
        a_hat = k * f / (n * (n - 1))
        square = k * (k - 1) * f * (f - 1) / (n * (n - 1) * (n - 2) * (n - 3))
    return a_hat**2 - np.where(n >= 4, square, 0.0)
