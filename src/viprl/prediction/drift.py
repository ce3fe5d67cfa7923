"""How success probabilities move between a prompt's visits, learned from how well each speed predicts.

Notation: M grid nodes, J candidate motions, B prompts. A motion is a random walk of the logit with a standard
deviation and a mean shift per visit, as a Markov chain on the grid. What moves the probabilities is the training
between the visits, so a prompt that waited for several visits' time is known less (``revert``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import linalg, special

from viprl._arrays import FloatArray, IntArray
from viprl.prediction.grid import LogitGrid

DEVIATIONS = (0.0, 0.1, 0.2, 0.3, 0.45, 0.7, 1.0)
SHIFTS = (-0.1, 0.0, 0.1)
START_DEVIATION = 0.2
FORGET = 0.98  # of the evidence, a step
SCORED = 256  # prompts a step that the candidates are scored on
SHARE = 1e-3  # weight that no candidate falls below, in sum


def walk_generator(u: FloatArray, deviation: float, shift: float) -> FloatArray:
    """(M, M) generator G (columns sum to zero) of a birth-death chain on nodes u with the walk's drift and variance.

    exp(G) moves mass along one visit; variance and drift match in the interior, the ends reflect.
    """
    size = len(u)
    gap = np.diff(u)
    rates = np.zeros((size, size))
    for i in range(size):
        up = gap[i] if i < size - 1 else 0.0
        down = gap[i - 1] if i > 0 else 0.0
        if up:
            spread = deviation**2 / (up * (up + (down or up)))
            rates[i + 1, i] = spread + max(shift, 0.0) / up
        if down:
            spread = deviation**2 / (down * (down + (up or down)))
            rates[i - 1, i] = spread + max(-shift, 0.0) / down
    return rates - np.diag(rates.sum(axis=0))


class Drift:
    """Mixture of candidate motions; ``weights`` (J,) follow their one-step predictive likelihoods."""

    def __init__(self, grid: LogitGrid) -> None:
        pairs = [(d, s) for d in DEVIATIONS for s in SHIFTS if d > 0 or s == 0]
        self.deviations = np.array([d for d, _ in pairs])
        self.shifts = np.array([s for _, s in pairs])
        self.kernels = np.stack([linalg.expm(walk_generator(grid.u, d, s)).T for d, s in pairs])  # rows sum to one
        self._u = grid.u
        self._stacked = np.ascontiguousarray(np.concatenate(list(self.kernels), axis=1))
        away = np.abs(np.log((self.deviations + 0.05) / (START_DEVIATION + 0.05)))
        self._start = -away - 2.0 * (self.shifts != 0)
        self.evidence = self._start.copy()
        self.intervals = np.zeros(2)  # steps between visits and their number, discounted
        self._refresh()

    @property
    def deviation(self) -> float:
        """Learned standard deviation of the logit's walk, per visit."""
        return float(self.weights @ self.deviations)

    @property
    def shift(self) -> float:
        """Learned mean shift of the logit, per visit."""
        return float(self.weights @ self.shifts)

    def move(self, density: FloatArray) -> FloatArray:
        """(B, M) densities one visit later."""
        result: FloatArray = density @ self._kernel
        return result

    def revert(self, density: FloatArray, prior: FloatArray, visits: IntArray) -> FloatArray:
        """(B, M) densities of prompts that waited ``visits`` (B,) visits' time, one of which ``move`` has seen to.

        What was seen long ago says little about now: as in a walk that is held at its prior (Ornstein-Uhlenbeck, of
        the learned deviation d a visit and the prior's variance s^2), the memory fades as exp(-visits d^2 / s^2).
        """
        spread = prior @ np.square(self._u) - np.square(prior @ self._u)
        memory = np.exp(-(visits - 1) * self.deviation**2 / np.maximum(spread, 1e-6))[:, None]
        return np.asarray(memory * density + (1.0 - memory) * prior)

    def learn(self, density: FloatArray, likelihood: FloatArray, trust: FloatArray) -> None:
        """Score the candidates: densities (B, M) after the last visit, likelihood (B, M) of this one."""
        if not len(density):
            return
        if len(density) > SCORED:
            pick = np.linspace(0, len(density) - 1, SCORED).astype(np.int64)
            density, likelihood, trust = density[pick], likelihood[pick], trust[pick]
        moved = (density @ self._stacked).reshape(len(density), len(self.weights), -1)  # one product for all motions
        ahead = np.matmul(moved, likelihood[:, :, None])[:, :, 0]
        score = trust @ np.log(np.maximum(ahead, 1e-300))
        self.evidence = FORGET * self.evidence + (1 - FORGET) * self._start + score - score.max()
        self.evidence -= self.evidence.max()
        self._refresh()

    def _refresh(self) -> None:
        self.weights = (1 - SHARE) * special.softmax(self.evidence) + SHARE * special.softmax(self._start)
        self._kernel = np.tensordot(self.weights, self.kernels, 1)

    def visits_worth(self, steps: FloatArray) -> IntArray:
        """(B,) how many visits' time has gone by in so many steps (B,) since the last visit: at least 1."""
        usual = self.interval if self.interval > 0 else np.inf
        return np.maximum(np.rint(steps / usual), 1.0).astype(np.int64)

    def learn_interval(self, steps: FloatArray) -> None:
        """Take in the steps (B,) between two visits of the step's known prompts."""
        if len(steps):
            self.intervals = FORGET * self.intervals + [steps.sum(), len(steps)]

    @property
    def interval(self) -> float:
        """Mean number of steps between a prompt's visits, of late; 0 while no prompt was visited twice."""
        total, visits = self.intervals
        return float(total / visits) if visits > 0 else 0.0

    def state(self) -> dict[str, Any]:
        return {"evidence": self.evidence.copy(), "intervals": self.intervals.copy()}

    def load(self, state: Mapping[str, Any]) -> None:
        self.evidence = np.array(state["evidence"], np.float64)
        self.intervals = np.array(state["intervals"], np.float64)
        self._refresh()
