"""How far the learned variances may be trusted, by what they would have saved in past steps.

Every step's norms give each prompt an unbiased estimate of its variance constant V1 that no earlier prediction saw.
Candidates are the paper's formula, the learned variances, mixtures of the two, each as they are or pulled towards
equality (uniform groups): log w = exponent * ((1 - blend) log paper + blend * log learned). Each candidate's would-be
cost on the step is compared with the others' on the same rollouts, so most of the noise cancels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from viprl._arrays import FloatArray

BLENDS = (0.0, 0.5, 1.0)
EXPONENTS = (0.0, 0.5, 1.0)
CANDIDATES = ((0.0, 0.0), *((blend, exponent) for exponent in EXPONENTS[1:] for blend in BLENDS))
PAPER = CANDIDATES.index((0.0, 1.0))


@dataclass(frozen=True)
class Trust:
    """The mixture in use: ``blend`` 0 is the paper's formula, 1 the learned one; ``exponent`` 0 is uniform."""

    blend: float
    exponent: float


def mix(paper: FloatArray, learned: FloatArray, blend: float, exponent: float) -> FloatArray:
    """(B,) weights w of a candidate; zero where both are."""
    floor = 1e-12
    logs = (1 - blend) * np.log(np.maximum(paper, floor)) + blend * np.log(np.maximum(learned, floor))
    # the mean keeps the common scale when the exponent shrinks differences
    centre = float(logs.mean()) if len(logs) else 0.0
    return np.asarray(np.exp(centre + exponent * (logs - centre)), dtype=np.float64)


def relative_costs(
    weights: FloatArray, truth: FloatArray, mean_size: float, smallest: float, largest: float
) -> FloatArray:
    """sum truth / (n - 1) with n - 1 proportional to sqrt(weight) within bounds, in units of 1 / (mean size - 1).

    The continuous optimum for curves V1 / (n - 1), for each row of weights (E, B); bisection on the common factor.
    """
    root = np.sqrt(np.maximum(weights, 1e-300))
    low, high = smallest - 1, largest - 1
    target = root.shape[1] * (mean_size - 1)
    lower, upper = np.log(low / root.max(axis=1)), np.log(high / root.min(axis=1))
    for _ in range(40):
        middle = (lower + upper) / 2
        over = np.clip(np.exp(middle)[:, None] * root, low, high).sum(axis=1) > target
        lower, upper = np.where(over, lower, middle), np.where(over, middle, upper)
    sizes = np.clip(np.exp(lower)[:, None] * root, low, high)
    return np.asarray((truth / sizes).sum(axis=1) * (mean_size - 1), dtype=np.float64)


class TrustRecord:
    """Discounted costs of all candidates, and the choice that follows.

    Args:
        keep: factor by which a step's evidence counts less after each step.
        margin: standard errors by which a candidate must beat the reference.
    """

    def __init__(self, *, keep: float, margin: float) -> None:
        self.keep, self.margin = keep, margin
        size = len(CANDIDATES)
        self._weight = np.zeros(2)  # discounted number of steps, and of squared weights
        self._sums = np.zeros(size + 1)  # discounted costs, and the cost of equal groups
        self._products = np.zeros((size + 1, size + 1))

    def update(self, costs: FloatArray, equal: float) -> None:
        """costs (candidates,) and the cost of equal groups, of one step."""
        step = np.append(costs, equal)
        if equal <= 0 or not np.isfinite(step).all():
            return
        self._weight = self._weight * np.array([self.keep, self.keep**2]) + 1.0
        self._sums = self.keep * self._sums + step
        self._products = self.keep * self._products + np.outer(step, step)

    def ratios(self) -> FloatArray:
        """(candidates,) discounted cost relative to equal groups; ones before any step."""
        equal = self._sums[-1]
        return self._sums[:-1] / equal if equal > 0 else np.ones(len(CANDIDATES))

    def standard_error(self, first: int, second: int) -> float:
        """Of the difference of two candidates' ratios, from its scatter between steps."""
        weight, squares = self._weight
        if weight <= 0 or weight**2 / squares < 3:
            return float("inf")
        ratio = self.ratios()
        direction = np.zeros(len(self._sums))
        direction[first] += 1.0
        direction[second] -= 1.0
        direction[-1] -= ratio[first] - ratio[second]
        scatter = float(direction @ self._products @ direction) / weight
        effective = weight**2 / squares
        return float(np.sqrt(max(scatter, 0.0) / (effective - 1)) * weight / self._sums[-1])

    def choice(self) -> Trust:
        """The cheapest candidate that beats the reference by the margin; the reference is the paper's formula."""
        ratio = self.ratios()
        best = PAPER
        for candidate in np.argsort(ratio, kind="stable").tolist():
            gain = ratio[PAPER] - ratio[candidate]
            if gain > self.margin * self.standard_error(candidate, PAPER):
                best = candidate
                break
        return Trust(*CANDIDATES[best])

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self._weight.copy(), "sums": self._sums.copy(), "products": self._products.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._weight = np.array(state["weight"], float)
        self._sums, self._products = np.array(state["sums"], float), np.array(state["products"], float)
