"""How success probabilities are spread over prompts, given what is known of a prompt before its first rollout.

Notation: M grid nodes, J knots, T tilts, B prompts. Densities are rows of M masses that sum to one.

A prompt with predicted mean m has the density f(u | m), linear in m between J knots, where f(u | m_j) has exactly
the mean m_j; so every density has exactly the mean asked for, while its spread is learned: E[p(1-p) | m] decides
where rollouts go, and it is not a fixed function of m (easy prompts are surer than hard ones of equal m (1 - m)).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from viprl._arrays import FloatArray
from viprl.prediction.grid import LogitGrid

KNOTS = np.array([0.003, 0.05, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.88, 0.95, 0.997])
BASE_PRIOR = (0.3, 0.45)
BASE_WEIGHT = 20.0  # the base prior counts like this many prompts
KNOT_WEIGHT = 20.0  # at each knot the shared shape counts like this many prompts
MEMORY = 4096.0  # prompts over which the learned distribution averages
TILT_LIMIT, TILTS = 400.0, 161


class PromptDistribution:
    """The learned f(u | m).

    Shared shape: the base f0 tilted to the mean m, exp(theta p(u)) f0(u) / Z (of all densities with that mean the
    nearest to f0 in relative entropy); f0 = sum_i posterior_i / sum_i (exp(theta_i p) / Z_i), the fixed point of its
    likelihood equation, started from Beta(.3, .45). Each knot then averages the posteriors of the prompts near it,
    held by ``KNOT_WEIGHT`` prompts of the shared shape, and is tilted back to its mean.
    """

    def __init__(self, grid: LogitGrid) -> None:
        self._p = grid.p
        a, b = BASE_PRIOR
        base = np.exp(a * grid.log_p + b * grid.log_q) * grid.width
        self._start = base / base.sum()
        self.found = self._start * BASE_WEIGHT
        self.expected = np.full(len(base), BASE_WEIGHT)
        self.near = np.zeros((len(KNOTS), len(base)))
        tilts = TILT_LIMIT * np.linspace(-1.0, 1.0, TILTS) ** 3
        self._tilts = tilts
        self._factors = np.exp(tilts[:, None] * self._p - np.maximum(tilts, 0.0)[:, None])  # (T, M)
        self._refresh()

    def density(self, mean: FloatArray) -> FloatArray:
        """(B, M) densities with means (B,), cut to the outer knots."""
        left, share = _between(KNOTS, mean)
        result: FloatArray = (1 - share)[:, None] * self.table[left] + share[:, None] * self.table[left + 1]
        return result

    def learn(self, posterior: FloatArray, mean: FloatArray, trust: FloatArray) -> None:
        """Take in the first posteriors (B, M) of new prompts with predicted means (B,) and weights trust (B,)."""
        keep = np.exp(-trust.sum() / MEMORY)
        factors = self._tilted(self.base, mean) / self.base
        self.found = keep * self.found + trust @ posterior + (1 - keep) * BASE_WEIGHT * self._start
        self.expected = keep * self.expected + trust @ factors + (1 - keep) * BASE_WEIGHT
        left, share = _between(KNOTS, mean)
        hats = np.zeros((len(mean), len(KNOTS)))
        at = np.arange(len(mean))
        hats[at, left], hats[at, left + 1] = (1 - share) * trust, share * trust
        self.near = keep * self.near + hats.T @ posterior
        self._refresh()

    def _tilted(self, density: FloatArray, mean: ArrayLike) -> FloatArray:
        """(B, M) tilts of a density (M,) to means (B,): a blend of the two nearest of T fixed tilts."""
        rows = density * self._factors
        rows /= rows.sum(axis=1, keepdims=True)
        left, share = _between(rows @ self._p, np.asarray(mean, np.float64))
        result: FloatArray = (1 - share)[:, None] * rows[left] + share[:, None] * rows[left + 1]
        return result

    def _refresh(self) -> None:
        base = self.found / self.expected
        self.base = base / base.sum()
        blended = self.near + KNOT_WEIGHT * self._tilted(self.base, KNOTS)
        self.table = np.concatenate([self._tilted(row, [knot]) for row, knot in zip(blended, KNOTS, strict=True)])

    def state(self) -> dict[str, Any]:
        return {"found": self.found.copy(), "expected": self.expected.copy(), "near": self.near.copy()}

    def load(self, state: Mapping[str, Any]) -> None:
        for name in self.state():
            setattr(self, name, np.array(state[name], np.float64))
        self._refresh()


def _between(knots: FloatArray, values: FloatArray) -> tuple[Any, FloatArray]:
    """Index of the knot on the left (B,) and the share of the one on the right (B,), for ascending knots."""
    left = np.clip(np.searchsorted(knots, values, side="right") - 1, 0, len(knots) - 2)
    return left, np.clip((values - knots[left]) / np.maximum(knots[left + 1] - knots[left], 1e-300), 0.0, 1.0)
