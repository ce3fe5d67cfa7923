"""Rules that look at rollouts inside the step before they spend the rest.

Their decisions depend on the same rollouts that enter the gradient, which the variance formula does not account for:
read their scores as optimistic.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from viprl._arrays import FloatArray, IntArray
from viprl.prediction import Prediction
from viprl.replay.rules.base import Rule, Setting, proportional_sizes
from viprl.replay.worlds.base import Step


def pilot(step: Step, count: int, setting: Setting) -> int:
    """Draw a pilot for every prompt, small enough for the budget; returns its size."""
    size = min(max(count, setting.min_group_size), step.budget // len(step))
    step.draw(np.arange(len(step)), size)
    return size


def pilot_rate(step: Step) -> FloatArray:
    """(B,) success rate of the rollouts seen in the step."""
    rate = np.full(len(step), 0.5)
    np.divide(step.hits, step.drawn, out=rate, where=step.drawn > 0)
    return rate


class GVM(Rule):
    """GVM-RAFT (arXiv 2505.02391): after a pilot, n in proportion to G / sqrt(p + alpha / p^(beta-1)); 0 where p = 0.

    p is the pilot's success rate, alpha = 1e-3, beta = 2. The gradient norm G is not in a log of rewards: equal here.
    The pilot's rollouts stay in the group, so a prompt without success keeps its pilot.
    """

    name, source = "gvm", "GVM-RAFT, arXiv 2505.02391 (equal gradient norms)"

    def __init__(self, *, pilot_size: int = 4, alpha: float = 1e-3, beta: float = 2.0) -> None:
        super().__init__()
        self.pilot_size, self.alpha, self.beta = pilot_size, alpha, beta

    def decide(self, step: Step, ids: Sequence[str], prediction: Prediction | None, setting: Setting) -> IntArray:
        size = pilot(step, self.pilot_size, setting)
        p = pilot_rate(step)
        safe = np.where(p > 0, p, 1.0)
        weight = np.where(p > 0, 1 / np.sqrt(safe + self.alpha / safe ** (self.beta - 1)), 0.0)
        return proportional_sizes(weight, step.budget, size, setting.max_group_size)


class VIGOR(Rule):
    """VIGOR (arXiv 2607.22002): all start with m0; each round the fraction alpha of largest observed variance grows.

    A group grows by the factor gamma, up to the upper bound, until the budget is spent; a last round that does not fit
    serves the largest variances first.
    """

    name, source = "vigor", "VIGOR, arXiv 2607.22002"

    def __init__(self, *, start: int = 4, alpha: float = 0.25, gamma: float = 1.5) -> None:
        super().__init__()
        self.start, self.alpha, self.gamma = start, alpha, gamma

    def decide(self, step: Step, ids: Sequence[str], prediction: Prediction | None, setting: Setting) -> IntArray:
        sizes = np.full(len(step), pilot(step, self.start, setting), dtype=np.int64)
        left = step.budget - int(sizes.sum())
        while left > 0:
            rate = pilot_rate(step)
            spread = np.where(step.drawn > 1, rate * (1 - rate) * step.drawn / np.maximum(step.drawn - 1, 1), 0.0)
            spread[sizes >= setting.max_group_size] = -1.0
            order = np.argsort(-spread, kind="stable")[: max(1, round(self.alpha * len(step)))]
            order = order[sizes[order] < setting.max_group_size]
            if not len(order):
                break
            grown = np.minimum(np.ceil(sizes[order] * self.gamma).astype(np.int64), setting.max_group_size)
            wanted = grown - sizes[order]
            extra = np.clip(left - (np.cumsum(wanted) - wanted), 0, wanted)
            for count in np.unique(extra[extra > 0]):
                step.draw(order[extra == count], int(count))
            sizes[order] += extra
            left -= int(extra.sum())
        return sizes


class PilotCommit(Rule):
    """Pilot-Commit (arXiv 2605.26606): a pilot for all, the rest for prompts with a pilot rate in [.25, .75].

    The others are skipped: their pilot rollouts are spent and train nothing.
    """

    name, source = "pilot_commit", "Pilot-Commit, arXiv 2605.26606"

    def __init__(self, *, pilot_size: int = 4, low: float = 0.25, high: float = 0.75) -> None:
        super().__init__()
        self.pilot_size, self.low, self.high = pilot_size, low, high

    def decide(self, step: Step, ids: Sequence[str], prediction: Prediction | None, setting: Setting) -> IntArray:
        size = pilot(step, self.pilot_size, setting)
        rate = pilot_rate(step)
        chosen = np.flatnonzero((rate >= self.low) & (rate <= self.high))
        sizes = np.zeros(len(step), dtype=np.int64)
        if len(chosen):
            left = step.budget - size * (len(step) - len(chosen))
            budget = min(left, setting.max_group_size * len(chosen))
            sizes[chosen] = proportional_sizes(np.ones(len(chosen)), budget, size, setting.max_group_size)
        return sizes


class DAPO(Rule):
    """DAPO's dynamic sampling (arXiv 2503.14476): equal groups, and further prompts until enough groups are live.

    Every group sampled is charged, also the dead ones that are thrown away; they add nothing to the gradient and only
    its normalisation differs, so the step's variance is that of equal groups over all prompts sampled. At most
    ``rounds`` batches are sampled.
    """

    name, source = "dapo", "DAPO, arXiv 2503.14476"

    def __init__(self, *, rounds: int = 10) -> None:
        super().__init__()
        self.rounds = rounds

    def decide(self, step: Step, ids: Sequence[str], prediction: Prediction | None, setting: Setting) -> IntArray:
        wanted, size = len(step), max(2, round(step.budget / len(step)))
        live = int(step.group_is_live(np.arange(wanted), size).sum())
        for _ in range(self.rounds - 1):
            if live >= wanted:
                break
            more = step.extend(wanted - live)
            if not len(more):
                break
            live += int(step.group_is_live(more, size).sum())
        return np.full(len(step), size, dtype=np.int64)
