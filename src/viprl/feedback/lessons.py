"""What a step leaves to be learnt once its gradient norms are known."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from viprl._arrays import FloatArray, IntArray
from viprl.errors import InvalidInputError, PlanError
from viprl.feedback.rewards import Rewards, read_flat
from viprl.prediction.base import Prediction, PromptId

if TYPE_CHECKING:
    from viprl.plan import Plan
    from viprl.variance.base import VarianceModel

logger = logging.getLogger("viprl")


@dataclass(frozen=True)
class Lesson:
    """One step's plan and rewards, as far as the guard and a model that learns need them.

    Attributes:
        key, step, prompt_ids, prediction, group_sizes, adaptive_sizes, uniform_sizes, guard_holding: of the plan.
        rewards: as trained.
        outcomes: 0 and 1, missing where unknown; None where there is no success.
    """

    key: str
    step: int
    prompt_ids: tuple[PromptId, ...]
    prediction: Prediction
    group_sizes: IntArray
    adaptive_sizes: IntArray
    uniform_sizes: IntArray
    guard_holding: bool
    rewards: Rewards
    outcomes: Rewards | None

    @classmethod
    def of(cls, plan: Plan, rewards: Rewards, outcomes: Rewards | None) -> Lesson:
        """The lesson of a plan and what came back for it."""
        return cls(
            plan.key,
            plan.step,
            plan.prompt_ids,
            plan.prediction,
            plan.group_sizes,
            plan.adaptive_sizes,
            plan.uniform_sizes,
            plan.guard_holding,
            rewards,
            outcomes,
        )

    def counts(self) -> tuple[FloatArray, FloatArray]:
        """(B,) successes and rollouts whose success is known."""
        assert self.outcomes is not None
        n = self.outcomes.counts.astype(np.float64)
        return np.where(n > 0, np.rint(self.outcomes.means * n), 0.0), n

    def read_norms(self, squared_norms: Any) -> FloatArray:
        """(C,) squared norms, flat or ragged as rewards may be.

        Raises:
            InvalidInputError: shapes that do not fit, or norms that are negative or infinite.
        """
        norms = read_flat(squared_norms, self.group_sizes, "squared norms")
        if np.isinf(norms).any() or (norms[~np.isnan(norms)] < 0).any():
            raise InvalidInputError("squared norms must be finite and non-negative, or NaN where unknown")
        return norms

    def teach(self, model: VarianceModel, norms: FloatArray | None) -> None:
        """Let the model learn from the step's norms, where there are any."""
        if self.outcomes is not None and norms is not None:
            model.learn(self.prompt_ids, self.prediction, self.group_sizes, self.outcomes.flat, norms)

    def state_dict(self) -> dict[str, Any]:
        """What the next step needs, as plain numbers and arrays."""
        nodes, weights = self.prediction.nodes()
        return {
            "key": self.key,
            "step": self.step,
            "prompt_ids": list(self.prompt_ids),
            "nodes": nodes,
            "weights": weights,
            "mean": self.prediction.mean,
            "bernoulli_variance": self.prediction.bernoulli_variance,
            "reward_variance": self.prediction.reward_variance,
            "cold": self.prediction.cold,
            "sizes": np.stack([self.group_sizes, self.adaptive_sizes, self.uniform_sizes]),
            "guard_holding": self.guard_holding,
            "rewards": self.rewards.flat,
            "outcomes": None if self.outcomes is None else self.outcomes.flat,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Lesson:
        """The inverse of ``state_dict``."""
        nodes, weights = state["nodes"], state["weights"]
        prediction = Prediction(
            state["mean"],
            state["bernoulli_variance"],
            quadrature=lambda: (nodes, weights),
            cold=state["cold"],
            reward_variance=state["reward_variance"],
        )
        sizes = state["sizes"]
        rewards = Rewards.of(state["rewards"], sizes[0])
        outcomes = None if state["outcomes"] is None else rewards.replaced(state["outcomes"])
        ids = tuple(state["prompt_ids"])
        used, adaptive, uniform = sizes
        held = state["guard_holding"]
        return cls(state["key"], state["step"], ids, prediction, used, adaptive, uniform, held, rewards, outcomes)


class AwaitedNorms:
    """Lessons of observed plans whose norms may still come, by plan key; the oldest go first.

    Args:
        capacity: how many are kept.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._lessons: dict[str, Lesson | None] = {}
        self._said = False

    def add(self, key: str, lesson: Lesson | None, *, taught: bool) -> None:
        """Remember a lesson; None for a step that must not teach. ``taught``: whether any norms ever came."""
        if self._lessons and not taught and not self._said:
            self._said = True
            logger.warning(
                "the variance model learns from gradient norms, but none came for the last step: it allocates by the "
                "paper's formula, under its guard, until observe(plan, rewards, squared_norms=...) or "
                "observe_norms(plan, norms) teaches it"
            )
        self._lessons[key] = lesson
        while len(self._lessons) > self.capacity:
            self._lessons.pop(next(iter(self._lessons)))

    def get(self, key: str) -> Lesson | None:
        """The lesson of a plan.

        Raises:
            PlanError: not observed, taught already, or too far back.
        """
        if key not in self._lessons:
            raise PlanError(
                "norms must be of a plan that was observed without them, one of the last "
                f"{self.capacity} such plans, and come once, but there is none with key {key}"
            )
        return self._lessons[key]

    def drop(self, key: str) -> None:
        """Forget a plan that has been taught."""
        self._lessons.pop(key, None)

    def state_dict(self) -> dict[str, Any]:
        """What the next step needs, as plain numbers and arrays."""
        return {key: None if lesson is None else lesson.state_dict() for key, lesson in self._lessons.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a ``state_dict``."""
        self._lessons = {key: None if saved is None else Lesson.from_state(saved) for key, saved in state.items()}
