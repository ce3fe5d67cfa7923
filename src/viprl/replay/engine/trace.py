"""Scores of one rule on one run, collected step by step.

Notation: T steps, B prompts of a step, a_q = p_q (1 - p_q) or its unbiased estimate, f the variance model's factor.

**Variance of a step**: sum_q a_q f(n_q) over the step's B prompts (relative to sigma_Z^2). Two extensions make rules of
every kind comparable:

- *A prompt without a gradient* (n_q <= 1) is charged a_q: its true gradient g = Cov(R, H) has |g|^2 <= Var(R) tr Var(H)
  = a_q sigma_Z^2 (Cauchy-Schwarz), so this is the most that leaving it out can cost in squared error.
- *A step that used other than C rollouts, or more than B prompts* is compared with uniform groups over the same
  rollouts; the variance of a mean over B' prompts counts (B/B')^2.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from viprl._arrays import BoolArray, FloatArray, IntArray
from viprl.allocation import solve_allocation
from viprl.prediction import Prediction
from viprl.replay.rules.base import Setting, uniform_sizes
from viprl.replay.worlds.base import Step

CLIP = 1e-3
BINS = 10
STEP_COLUMNS = (
    "number",
    "variance",  # under the rule's sizes
    "uniform",  # under uniform groups with as many rollouts
    "best",  # under the best allocation (oracle or hindsight) of the step's own budget
    "best_uniform",  # under uniform groups of the step's own budget
    "live",  # expected groups with both outcomes
    "uniform_live",
    "rollouts",  # charged
    "budget",
    "prompts",
    "left_out",  # prompts without a gradient
    "signal",  # sum of a_q
    "missed",  # sum of a_q over prompts without a gradient
    "seconds",  # predict + decide + learn
)
KINDS = ("first", "later")
LOSSES = ("count", "log_loss", "brier", "absolute", "rate")


@dataclass
class Trace:
    """One rule on one run.

    Attributes:
        rule, seed: which.
        phases: (T,) the phase of each step.
        steps: column -> (T,) numbers; see ``STEP_COLUMNS``.
        losses: "first" or "later" -> loss -> (T,) sums over the step's visits of that kind.
        reliability: (2, 10, 3) for first and later visits, ten bins of the prediction: visits, sum of predictions, sum
            of observed rates.
        spending: phase -> (10, 3) by the prompt's success rate: prompts, rollouts, rollouts of the best allocation.
        finished: False where the run was interrupted.
    """

    rule: str
    seed: int
    phases: list[str] = field(default_factory=list)
    steps: dict[str, list[float] | FloatArray] = field(default_factory=dict)
    losses: dict[str, dict[str, list[float] | FloatArray]] = field(default_factory=dict)
    reliability: FloatArray = field(default_factory=lambda: np.zeros((2, BINS, 3)))
    spending: dict[str, FloatArray] = field(default_factory=dict)
    finished: bool = False

    def column(self, name: str, phase: str | None = None) -> FloatArray:
        """(T,) or the part of it that lies in ``phase``."""
        values = np.asarray(self.steps[name], dtype=np.float64)
        return values if phase is None else values[self.in_phase(phase)]

    def loss(self, kind: str, name: str, phase: str | None = None) -> FloatArray:
        """(T,) sums of a loss over the step's first or later visits."""
        values = np.asarray(self.losses[kind][name], dtype=np.float64)
        return values if phase is None else values[self.in_phase(phase)]

    def in_phase(self, phase: str) -> BoolArray:
        """(T,) True for the steps of a phase."""
        return np.array([name == phase for name in self.phases], dtype=bool)


class Recorder:
    """Fills a Trace; knows which prompts were met before."""

    def __init__(self, rule: str, seed: int, prompts: int, setting: Setting) -> None:
        self.trace = Trace(rule, seed)
        self.trace.steps = {name: [] for name in STEP_COLUMNS}
        self.trace.losses = {kind: {name: [] for name in LOSSES} for kind in KINDS}
        self._seen = np.zeros(prompts, dtype=bool)
        self._setting = setting

    def add(self, step: Step, own: int, prediction: Prediction | None, sizes: IntArray, seconds: float) -> None:
        """Score one step, of whose prompts the first ``own`` are its own and the rest were added by the rule."""
        self.trace.phases.append(step.phase)
        for name, value in {**self._variances(step, own, sizes), "seconds": seconds, "number": step.number}.items():
            self.trace.steps[name].append(float(value))  # type: ignore[union-attr]
        self._score(step, own, prediction)
        self._seen[step.rows] = True

    def _variances(self, step: Step, own: int, sizes: IntArray) -> dict[str, float]:
        model, weight = self._setting.model, np.nan_to_num(step.weight)
        trains = sizes >= 2
        cost = np.ones(len(sizes))
        cost[trains] = model.factor(sizes[trains])
        rollouts = int(np.where(sizes > 0, sizes, step.drawn).sum())
        equal = uniform_sizes(own, step.budget, self._setting)
        own_weight = weight[:own]
        at_budget = float((own_weight * model.factor(equal)).sum())
        # uniform groups of the rollouts that were really used may be fractional
        same_cost = at_budget
        mean_size = rollouts / own
        if rollouts != step.budget:
            same_cost = float((own_weight * model.factor(np.full(own, max(mean_size, 2.0)))).sum())
        best = solve_allocation(
            model,
            step.best_weight[:own],
            step.budget,
            self._setting.min_group_size,
            self._setting.max_group_size,
        )
        self._spend(step, own, sizes, best)
        shrink = (own / len(sizes)) ** 2
        return {
            "variance": float((weight * cost).sum()) * shrink,
            "uniform": same_cost,
            "best": float((own_weight * model.factor(best)).sum()),
            "best_uniform": at_budget,
            "live": float(step.live(np.where(trains, sizes, 0).astype(np.float64)).sum()),
            "uniform_live": float(step.live(_padded(equal, len(sizes)))[:own].sum()),
            "rollouts": rollouts,
            "budget": step.budget,
            "prompts": own,
            "left_out": int((~trains).sum()),
            "signal": float(weight.sum()),
            "missed": float(weight[~trains].sum()),
        }

    def _spend(self, step: Step, own: int, sizes: IntArray, best: IntArray) -> None:
        bins = np.minimum((step.bin_rate[:own] * BINS).astype(np.int64), BINS - 1)
        total = self.trace.spending.setdefault(step.phase, np.zeros((BINS, 3)))
        for column, values in enumerate((np.ones(own), sizes[:own], best)):
            total[:, column] += np.bincount(bins, values, minlength=BINS)

    def _score(self, step: Step, own: int, prediction: Prediction | None) -> None:
        rate = step.target[:own]
        first = ~self._seen[step.rows[:own]]
        scores = np.zeros((len(LOSSES), own))
        scores[0] = 1.0
        if prediction is not None:
            p = np.clip(prediction.mean, CLIP, 1 - CLIP)
            scores[1] = cross_entropy(p, rate)
            scores[2] = np.square(prediction.mean - rate) + rate * (1 - rate)
            scores[3] = np.abs(prediction.mean - rate)
        scores[4] = rate
        for kind, mask in zip(KINDS, (first, ~first), strict=True):
            for name, total in zip(LOSSES, scores[:, mask].sum(axis=1), strict=True):
                self.trace.losses[kind][name].append(float(total))  # type: ignore[union-attr]
            if prediction is not None:
                self._reliability(KINDS.index(kind), prediction.mean[mask], rate[mask])

    def _reliability(self, kind: int, mean: FloatArray, rate: FloatArray) -> None:
        bins = np.minimum((mean * BINS).astype(np.int64), BINS - 1)
        for column, values in enumerate((np.ones(len(mean)), mean, rate)):
            self.trace.reliability[kind, :, column] += np.bincount(bins, values, minlength=BINS)


def cross_entropy(p: FloatArray, rate: FloatArray) -> FloatArray:
    """Negative log likelihood per rollout of an observed rate under a prediction p in (0, 1)."""
    result: FloatArray = -(rate * np.log(p) + (1 - rate) * np.log(1 - p))
    return result


def _padded(sizes: IntArray, length: int) -> NDArray[np.float64]:
    result = np.zeros(length)
    result[: len(sizes)] = sizes
    return result
