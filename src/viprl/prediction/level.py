"""The level of the rewards' variance, followed over any number of orders of magnitude.

B groups of a step. With v_i the expected variances relative to the level, a step's sample variances s_i^2 with d_i
degrees of freedom say by which factor the level has moved: rho solves sum_i d_i v_i (min(s_i^2 / (level v_i rho), c)
- 1) = 0, the ratio of observed and expected sums with every group's ratio cut at c. Of log rho the part that stands
out of the noise is followed at once and a tenth of the rest (a positive-part James-Stein estimate). Level and expected
variances share what they learn, so the level also drifts slowly to where the mean expected variance is 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from viprl._arrays import FloatArray

START = 0.25  # variance assumed before any observation; only ratios between prompts matter then
CUT = 10.0  # times the mean of the groups with any spread: no single group moves the level by itself
SHARE = 0.1  # of a movement within the noise
RETURN = 0.02  # of the distance between the mean expected variance and 1
NOISE = 4.0  # squared standard errors that are noise
PER_GROUP = 4.0  # the level's logarithm moves by at most this a group with spread
LOWEST, HIGHEST = 1e-280, 1e280


class VarianceLevel:
    """State: the level, 0 before the first step with any spread."""

    def __init__(self) -> None:
        self._level = 0.0

    @property
    def known(self) -> bool:
        return self._level > 0

    @property
    def value(self) -> float:
        return self._level or START

    def learn(self, expected: FloatArray, squares: FloatArray, degrees: FloatArray, spread: float) -> None:
        """Follow one step.

        Args:
            expected: (B,) variances expected relative to the level, positive.
            squares: (B,) d s^2.
            degrees: (B,) d.
            spread: relative variance between prompts, beyond what is expected.

        A step without any spread says nothing about the level: it may be that all prompts are mastered.
        """
        live = squares > 0
        if not live.any():
            return
        weight = degrees * expected
        use = weight > 0
        ratio, weight = squares[use] / self.value / weight[use], weight[use] / weight[use].sum()
        if not self.known:
            self._level = float(np.clip(self.value * _factor(ratio, weight), LOWEST, HIGHEST))
            return
        rho = _factor(ratio, weight)
        excess = np.minimum(ratio / rho, _cut(ratio, weight)) - 1
        noise = np.square(weight) @ np.maximum(np.square(excess), spread + 2 / degrees[use])
        moved = np.log(rho)
        moved *= max(SHARE, 1 - NOISE * float(noise) / max(moved**2, 1e-300))
        moved += RETURN * np.log(degrees @ expected / degrees.sum())
        bound = PER_GROUP * float(live.sum())
        self._level = float(np.clip(self._level * np.exp(np.clip(moved, -bound, bound)), LOWEST, HIGHEST))

    def state(self) -> dict[str, Any]:
        return {"value": self._level}

    def load(self, state: Mapping[str, Any]) -> None:
        level = float(state["value"])
        self._level = level if LOWEST <= level <= HIGHEST else 0.0


def _cut(ratio: FloatArray, weight: FloatArray) -> float:
    """The cut c: CUT over the share (by weight) of the groups with any spread, so that a solution exists."""
    return CUT / float(weight[ratio > 0].sum())


def _factor(ratio: FloatArray, weight: FloatArray) -> float:
    """rho > 0 with weight @ min(ratio / rho, c) = 1, weights summing to one.

    Exact in the ratios' order: with the largest j ratios cut, rho = (weighted sum of the others) / (1 - c W_j), and
    the right j is the first whose rho leaves the next ratio below the cut.
    """
    cut = _cut(ratio, weight)
    order = np.argsort(-ratio, kind="stable")
    ratio, weight = ratio[order], weight[order]
    above = np.concatenate([[0.0], np.cumsum(weight)[:-1]])  # weight of the ratios that are cut
    rest = np.cumsum((weight * ratio)[::-1])[::-1]
    room = 1 - cut * above
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = np.where(room > 0, rest / room, np.inf)
    return float(rho[np.flatnonzero(ratio <= cut * rho)[0]])
