"""What a rule is: given a step, how many rollouts for each prompt.

Notation: B prompts, n_q group sizes, L and U their bounds, C the step's budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from viprl._arrays import FloatArray, IntArray
from viprl.allocation import Uniform
from viprl.build import build_variance
from viprl.errors import ConfigurationError, InvalidInputError
from viprl.prediction import Prediction, Predictor
from viprl.replay.worlds.base import Step
from viprl.settings import AllocationSettings
from viprl.variance import SeparableVariance


@dataclass(frozen=True)
class Setting:
    """What all rules of a replay share.

    Attributes:
        model: the variance model, RLOO or Dr. GRPO.
        min_group_size, max_group_size: L and U.
    """

    model: SeparableVariance
    min_group_size: int = 3
    max_group_size: int = 32

    def __post_init__(self) -> None:
        if not 2 <= self.min_group_size <= self.max_group_size:
            raise InvalidInputError(
                "2 <= min_group_size <= max_group_size must hold in a replay, but got "
                f"({self.min_group_size}, {self.max_group_size})"
            )


def formula(estimator: str) -> SeparableVariance:
    """The estimator's variance v(n) = a f(n), by which a replay and a forecast score.

    Raises:
        ConfigurationError: an unknown estimator.
    """
    model = build_variance(AllocationSettings(estimator=estimator, variance="formula"))
    if not isinstance(model, SeparableVariance):
        raise ConfigurationError(f"a replay scores by variances a f(n), but got estimator={estimator!r}, {model.name}")
    return model


class Rule:
    """A way to spend a step's rollouts.

    Subclasses implement ``decide``; ``name`` is what the command line and the report call the rule, ``source`` the
    paper that it comes from.
    """

    name: str
    source: str

    def __init__(self, predictor: Predictor | None = None) -> None:
        self.predictor = predictor

    def predict(self, ids: Sequence[str]) -> Prediction | None:
        """The prediction for the step's prompts, None for a rule that makes none."""
        return None if self.predictor is None else self.predictor.predict(ids)

    def decide(self, step: Step, ids: Sequence[str], prediction: Prediction | None, setting: Setting) -> IntArray:
        """(B,) group sizes, 0 where a prompt is left out; B grows where the rule extends the step.

        Rollouts drawn inside the step are part of the group, or wasted where the group's size is 0.
        """
        raise NotImplementedError

    def learn(self, ids: Sequence[str], successes: FloatArray, rollouts: IntArray) -> None:
        """Take in the step's outcomes."""
        if self.predictor is not None:
            self.predictor.observe(ids, successes, rollouts)

    def learn_rewards(self, ids: Sequence[str], means: FloatArray, variances: FloatArray, rollouts: IntArray) -> None:
        """Take in the step's outcomes where a rule that reads rewards is in a world whose rewards are real."""
        if self.predictor is not None:
            self.predictor.observe_rewards(ids, means, variances, rollouts)

    @property
    def reads_rewards(self) -> bool:
        """The predictor is of reward variances, not of success probabilities."""
        return self.predictor is not None and self.predictor.reward_kind == "real"


def uniform_sizes(count: int, budget: int, setting: Setting) -> IntArray:
    """(count,) sizes as equal as possible."""
    return Uniform().allocate(
        Prediction.point(np.full(count, 0.5)),
        model=setting.model,
        budget=budget,
        min_group_size=setting.min_group_size,
        max_group_size=setting.max_group_size,
    )


def proportional_sizes(weights: ArrayLike, budget: int, lower: ArrayLike, upper: ArrayLike) -> IntArray:
    """(B,) integers near t * weights within the bounds, t such that they sum to the budget.

    Where the weights cannot use up the budget (zeros, bounds) the rest is spread equally. Left-over rollouts go by
    the largest remainder, ties to the earlier prompt.

    Raises:
        InvalidInputError: the budget lies outside the sums of the bounds.
    """
    w = np.asarray(weights, dtype=np.float64)
    low = np.broadcast_to(np.asarray(lower, dtype=np.int64), w.shape)
    high = np.broadcast_to(np.asarray(upper, dtype=np.int64), w.shape)
    if not low.sum() <= budget <= high.sum():
        raise InvalidInputError(
            "sum of lower bounds <= budget <= sum of upper bounds must hold, but got "
            f"{low.sum()}, {budget}, {high.sum()}"
        )
    tiny = 1e-9 * max(float(w.max(initial=0.0)), 1.0)
    sizes = _fill(np.maximum(w, tiny), budget, low, high)
    floors = np.clip(np.floor(sizes + 1e-9).astype(np.int64), low, high)
    rest = budget - int(floors.sum())
    open_rows = np.flatnonzero(floors < high)
    order = open_rows[np.argsort(-(sizes - floors)[open_rows], kind="stable")]
    floors[order[:rest]] += 1
    return floors


def _fill(w: FloatArray, budget: int, low: NDArray[np.int64], high: NDArray[np.int64]) -> FloatArray:
    """clip(t w, low, high) summing to the budget, by bisection on log t."""
    left, right = np.log(max(budget, 1) * 1e-6 / w.max()), np.log(max(float(high.max()), 1.0) / w.min() * 2)
    for _ in range(100):
        middle = (left + right) / 2
        if np.clip(np.exp(middle) * w, low, high).sum() > budget:
            right = middle
        else:
            left = middle
    return np.asarray(np.clip(np.exp(left) * w, low, high), dtype=np.float64)
