"""Smooth curves of a rollout's expected squared gradient norm in the success probability, one for each outcome.

Notation: G grid points x_g = logit(p), outcome o in {failure, success} (rows 0 and 1 of every array), z = ||H||^2.

    log E[z | p, o] = theta_o(logit p),    theta_o ~ Gaussian process with mean l and covariance
                                           scale^2 exp(-(x - x')^2 / (2 length^2))

l is the logarithm of the overall mean, common to both outcomes: without data both curves are the same constant, which
is the paper's formula. The likelihood is that of a gamma distribution (variance proportional to the squared mean),
the maximum a posteriori is found by Fisher scoring; old steps count less by a constant factor per step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special

from viprl._arrays import FloatArray

GRID = np.linspace(-6.0, 6.0, 25)
_STEP = float(GRID[1] - GRID[0])


def hat_weights(p: FloatArray) -> tuple[NDArray[np.int64], FloatArray]:
    """Position of p between grid points: lower index (clipped to the grid) and weight of the upper neighbour."""
    x = np.clip(special.logit(np.clip(p, 1e-6, 1 - 1e-6)), GRID[0], GRID[-1])
    low = np.minimum(((x - GRID[0]) / _STEP).astype(np.int64), len(GRID) - 2)
    return low, (x - GRID[low]) / _STEP


class OutcomeCurves:
    """The two curves and the discounted sums that they are fitted to.

    Args:
        keep: factor by which old observations count less after each step.
        scale: prior standard deviation of log E[z] around its mean.
        length: how far in logit(p) the curves remember.
    """

    def __init__(self, *, keep: float, scale: float, length: float) -> None:
        self.keep = keep
        self._counts = np.zeros((2, len(GRID)))  # discounted weight of observations per grid point
        self._sums = np.zeros((2, len(GRID)))  # the same, times z
        self._spread = np.zeros(2)  # discounted weight, weight * (z / E[z] - 1)^2
        self._theta = np.zeros((2, len(GRID)))
        self.level = 0.0
        covariance = scale**2 * np.exp(-((GRID[:, None] - GRID) ** 2) / (2 * length**2))
        self._precision = linalg.inv(covariance + 1e-6 * scale**2 * np.eye(len(GRID)))

    @property
    def empty(self) -> bool:
        return float(self._counts.sum()) == 0.0

    @property
    def dispersion(self) -> float:
        """Variance of z / E[z] over observations; 1 before there are enough to tell."""
        weight, total = self._spread
        return float((total + 10.0) / (weight + 10.0))

    def values(self, p: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(E[z | p, failure], E[z | p, success]), each of the shape of p, relative to the overall level."""
        low, upper = hat_weights(p)
        curves = self._theta - self.level
        failure, success = (np.exp((1 - upper) * c[low] + upper * c[low + 1]) for c in curves)
        return failure, success

    def update(self, outcome: NDArray[np.int64], nodes: FloatArray, weights: FloatArray, z: FloatArray) -> None:
        """Take in one step and refit.

        Args:
            outcome: (O,) 0 or 1.
            nodes: (O, M) values that p may have.
            weights: (O, M) their probabilities times the observation's weight.
            z: (O,) mean squared norms.
        """
        self._counts *= self.keep
        self._sums *= self.keep
        self._spread *= self.keep
        if not self.empty and len(z):
            relative = z / np.exp(self.level) / self._expected(outcome, nodes, weights)
            weight = weights.sum(axis=1)
            self._spread += np.array([weight.sum(), float(weight @ np.minimum((relative - 1) ** 2, 25.0))])
        low, upper = hat_weights(nodes)
        for neighbour, share in ((low, 1 - upper), (low + 1, upper)):
            index = (np.broadcast_to(outcome[:, None], nodes.shape), neighbour)
            np.add.at(self._counts, index, weights * share)
            np.add.at(self._sums, index, weights * share * z[:, None])
        self._fit()

    def _expected(self, outcome: NDArray[np.int64], nodes: FloatArray, weights: FloatArray) -> FloatArray:
        both = np.stack(self.values(nodes))
        own = np.where(outcome[:, None] == 1, both[1], both[0])
        return np.asarray((own * weights).sum(axis=1) / weights.sum(axis=1), dtype=np.float64)

    def _fit(self) -> None:
        if self.empty:
            return
        mean = self._sums.sum() / self._counts.sum()
        if mean <= 0:
            return
        level = float(np.log(mean))
        fitted = bool(self._theta.any())  # the last step's curves are a close start
        seen = np.clip(self._sums, 0, None)
        counts = self._counts / self.dispersion
        seen = seen / self.dispersion
        for row in range(2):
            # log-posterior: sum_g -counts theta - seen exp(-theta) - (theta - level)' P (theta - level) / 2
            theta = self._theta[row] if fitted else np.full(len(GRID), level)
            for _ in range(30):
                excess = seen[row] * np.exp(-np.clip(theta, level - 30, level + 30))
                slope = excess - counts[row] - self._precision @ (theta - level)
                # the larger of the two curvatures keeps the step from overshooting
                curvature = np.diag(np.maximum(excess, counts[row])) + self._precision
                step = linalg.solve(curvature, slope, assume_a="pos")
                theta = theta + np.clip(step, -2, 2)
                if float(np.abs(step).max()) < 1e-6:
                    break
            self._theta[row] = theta
        self.level = level

    def state_dict(self) -> dict[str, Any]:
        return {
            "counts": self._counts.copy(),
            "sums": self._sums.copy(),
            "spread": self._spread.copy(),
            "theta": self._theta.copy(),
            "level": self.level,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._counts, self._sums = np.array(state["counts"], float), np.array(state["sums"], float)
        self._spread, self._theta = np.array(state["spread"], float), np.array(state["theta"], float)
        self.level = float(state["level"])
