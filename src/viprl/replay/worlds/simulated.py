"""Steps of worlds whose success probabilities are known: rollouts are drawn, scores are exact."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from viprl._arrays import BoolArray, FloatArray, IntArray
from viprl.replay.worlds.base import Step

Further = Callable[[int], tuple[IntArray, FloatArray]]


class SimulatedStep(Step):
    """B prompts with known probabilities p; Binomial rollouts from ``rng``.

    Args:
        p: (B,) success probabilities.
        further: gives (rows, p) of that many further prompts.
        silent: an outage: every rollout is told as a failure.
    """

    def __init__(
        self,
        number: int,
        phase: str,
        rows: IntArray,
        p: FloatArray,
        budget: int,
        rng: np.random.Generator,
        further: Further,
        *,
        silent: bool = False,
    ) -> None:
        super().__init__(number, phase, rows, budget)
        self._p, self._rng, self._further, self._silent = p, rng, further, silent

    def draw(self, positions: IntArray, count: int) -> None:
        got = self._rng.binomial(count, self._p[positions])
        self.drawn[positions] += count
        self.hits[positions] += 0 if self._silent else got

    def group_is_live(self, positions: IntArray, size: int) -> BoolArray:
        got = self._rng.binomial(size, self._p[positions])
        return (got > 0) & (got < size)

    def extend(self, count: int) -> IntArray:
        before = len(self.rows)
        rows, p = self._further(count)
        self.rows, self._p = np.concatenate([self.rows, rows]), np.concatenate([self._p, p])
        self.drawn = np.concatenate([self.drawn, np.zeros(len(rows), np.int64)])
        self.hits = np.concatenate([self.hits, np.zeros(len(rows))])
        return np.arange(before, len(self.rows))

    def learn(self, sizes: IntArray) -> tuple[FloatArray, IntArray]:
        successes = self.hits + self._rng.binomial(np.maximum(sizes - self.drawn, 0), self._p)
        if self._silent:
            successes = np.zeros(len(sizes))
        return successes, np.maximum(sizes, self.drawn)

    @property
    def weight(self) -> FloatArray:
        return self._p * (1 - self._p)

    @property
    def target(self) -> FloatArray:
        return self._p

    @property
    def best_weight(self) -> FloatArray:
        return self.weight

    @property
    def bin_rate(self) -> FloatArray:
        return self._p

    def live(self, sizes: FloatArray) -> FloatArray:
        return np.where(sizes >= 1, 1 - self._p**sizes - (1 - self._p) ** sizes, 0.0)
