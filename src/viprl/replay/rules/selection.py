"""Rules that choose which prompts get rollouts at all. What they free goes to the prompts they keep."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from viprl._arrays import FloatArray, IntArray
from viprl.prediction import Prediction
from viprl.replay.rules.base import Rule, Setting, proportional_sizes
from viprl.replay.worlds.base import Step


def spread_over(chosen: IntArray, step: Step, setting: Setting) -> IntArray:
    """(B,) the budget divided equally over the chosen prompts, at most ``max_group_size`` each; others 0."""
    sizes = np.zeros(len(step), dtype=np.int64)
    if len(chosen):
        budget = min(step.budget, setting.max_group_size * len(chosen))
        sizes[chosen] = proportional_sizes(np.ones(len(chosen)), budget, 0, setting.max_group_size)
    return sizes


class MoPPS(Rule):
    """MoPPS (arXiv 2507.04632): discounted Beta posteriors, a Thompson draw of each, the prompts nearest 1/2 win.

    The posterior's update is a' = keep a + (1 - keep) a0 + successes. The step's prompts are the candidates; half of
    them are trained, with twice the rollouts each.
    """

    name, source = "mopps", "MoPPS, arXiv 2507.04632"

    def __init__(self, seed: int, *, keep: float = 0.5, prior: float = 1.0, share: float = 0.5) -> None:
        super().__init__()
        self.keep, self.prior, self.share = keep, prior, share
        self._rng = np.random.default_rng([seed, 7])
        self._posterior: dict[str, tuple[float, float]] = {}

    def decide(self, step: Step, ids: Sequence[str], prediction: Prediction | None, setting: Setting) -> IntArray:
        a, b = np.array([self._posterior.get(i, (self.prior, self.prior)) for i in ids]).T
        distance = np.abs(self._rng.beta(a, b) - 0.5)
        count = max(1, round(self.share * len(step)))
        return spread_over(np.sort(np.argsort(distance, kind="stable")[:count]), step, setting)

    def learn(self, ids: Sequence[str], successes: FloatArray, rollouts: IntArray) -> None:
        fade = (1 - self.keep) * self.prior
        for i, k, n in zip(ids, successes.tolist(), rollouts.tolist(), strict=True):
            if n > 0:
                a, b = self._posterior.get(i, (self.prior, self.prior))
                self._posterior[i] = (self.keep * a + fade + k, self.keep * b + fade + n - k)


class GRESO(Rule):
    """GRESO (arXiv 2506.02177): skip a prompt with probability 1 - max(p^z, 0.01) after z dead visits in a row.

    A visit is dead where all its rewards are equal. ``base`` is the exploration probability p, which the paper adapts
    to a target share of dead groups; it is constant here.
    """

    name, source = "greso", "GRESO, arXiv 2506.02177"

    def __init__(self, seed: int, *, base: float = 0.5, floor: float = 0.01) -> None:
        super().__init__()
        self.base, self.floor = base, floor
        self._rng = np.random.default_rng([seed, 8])
        self._dead: dict[str, int] = {}

    def decide(self, step: Step, ids: Sequence[str], prediction: Prediction | None, setting: Setting) -> IntArray:
        z = np.array([self._dead.get(i, 0) for i in ids])
        chosen = np.flatnonzero(self._rng.random(len(step)) < np.maximum(self.base**z, self.floor))
        return spread_over(chosen, step, setting)

    def learn(self, ids: Sequence[str], successes: FloatArray, rollouts: IntArray) -> None:
        for i, k, n in zip(ids, successes.tolist(), rollouts.tolist(), strict=True):
            if n > 0:
                self._dead[i] = self._dead.get(i, 0) + 1 if k in (0.0, n) else 0
