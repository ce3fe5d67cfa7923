"""What an allocator keeps of past steps beside its predictor: guard, outages, scores, and norms that are still due."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from viprl._arrays import FloatArray
from viprl.feedback.guard import Guard
from viprl.feedback.lessons import AwaitedNorms, Lesson
from viprl.feedback.outage import OutageDetector
from viprl.feedback.scores import PredictionScores

if TYPE_CHECKING:
    from viprl.variance.base import VarianceModel

logger = logging.getLogger("viprl")

SILENT_STEPS = 20  # without any success from the first step on, after which it is said
AWAITED_PLANS = 8  # observed plans whose gradient norms may still come


class FeedbackRecord:
    """Takes in every step's outcomes, in this order: is it an outage, how good was the prediction, which groups were
    better, and what do the gradient norms teach.

    Args:
        guard: whether the guard's verdict counts; a ``Guard`` to tune it.
        quarantine: whether outages are kept out; an ``OutageDetector`` to tune it.
    """

    def __init__(self, guard: bool | Guard, quarantine: bool | OutageDetector) -> None:
        self._guarded, self._quarantine = guard is not False, quarantine is not False
        self._guard = guard if isinstance(guard, Guard) else Guard()
        self._outage = quarantine if isinstance(quarantine, OutageDetector) else OutageDetector()
        self._awaited = AwaitedNorms(AWAITED_PLANS)
        self.scores = PredictionScores()
        self._failures: float | None = 0.0  # outcomes since the first step, none of them a success; None after one

    @property
    def holding(self) -> bool:
        """True while the guard replaces the policy's groups by uniform ones."""
        return self._guarded and self._guard.holding

    def replaces(self, cold_share: float) -> bool:
        """Whether a batch with this share of cold prompts gets uniform groups instead of the policy's."""
        return self._guarded and self._guard.replaces(cold_share)

    def take(self, lesson: Lesson, model: VarianceModel, norms: FloatArray | None) -> bool:
        """Take in one step; False where it must not teach the predictor.

        Args:
            lesson: plan and rewards.
            model: the variance model, which learns where norms are there.
            norms: (C,) squared gradient norms; None where there are none, or not yet.
        """
        outage = False
        if lesson.outcomes is not None:
            successes, rollouts = lesson.counts()
            self._listen(lesson, bool(successes.any()), float(rollouts.sum()))
            outage = self._quarantine and self._outage.update(lesson.prediction, successes, rollouts)
            if not outage:
                self.scores.update(lesson.prediction.mean, successes, rollouts)
        if model.learns and norms is None:
            self._awaited.add(lesson.key, None if outage else lesson, taught=model.taught)
        if not outage:
            self._judge(lesson, model, norms)
            lesson.teach(model, norms)
        return not outage

    def take_norms(self, key: str, squared_norms: Any, model: VarianceModel) -> None:
        """Norms of a step that was taken in without them; raises as ``RolloutAllocator.observe_norms`` does."""
        lesson = self._awaited.get(key)
        if lesson is not None:
            norms = lesson.read_norms(squared_norms)
            self._judge(lesson, model, norms)
            lesson.teach(model, norms)
        self._awaited.drop(key)

    def metrics(self) -> dict[str, float]:
        """Realised variance ratios, of the groups that were used and of the policy's, and the predictions' scores."""
        state = self._guard.state()
        ratios = {"realised_variance_ratio": state.used_ratio, "policy_realised_variance_ratio": state.ratio}
        return ratios | self.scores.metrics()

    def state_dict(self) -> dict[str, Any]:
        """What the next step needs, as plain numbers and arrays."""
        return {
            "guard": self._guard.state_dict(),
            "outage": self._outage.state_dict(),
            "scores": self.scores.state_dict(),
            "awaited": self._awaited.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a ``state_dict``."""
        self._guard.load_state_dict(state["guard"])
        self._outage.load_state_dict(state["outage"])
        self.scores.load_state_dict(state["scores"])
        rollouts, _, rate = self.scores.reliability()
        self._failures = None if np.nansum(rollouts * rate) > 0 else float(rollouts.sum())
        self._awaited.load_state_dict(state["awaited"])

    def _listen(self, lesson: Lesson, succeeded: bool, rollouts: float) -> None:
        """Say once that a success never came: perhaps it is another reward that means one."""
        if self._failures is None or succeeded:
            self._failures = None
            return
        self._failures += rollouts
        if lesson.step + 1 >= SILENT_STEPS:
            values = lesson.rewards.values
            logger.warning(
                "no success in %d steps: none of the %d outcomes that were read is one (rewards of this step: %s); if "
                "some of these rollouts did succeed, `success_reward` or `reward_values` must say how it is seen",
                *(lesson.step + 1, self._failures),
                f"{values[0]:g} to {values[-1]:g}" if len(values) else "none",
            )
            self._failures = None

    def _judge(self, lesson: Lesson, model: VarianceModel, norms: FloatArray | None) -> None:
        """Let the guard compare the policy's groups with uniform ones, by the model's own measure."""
        if norms is None and model.taught:
            return  # a learned model is measured by norms, which are still to come
        sizes = np.stack([lesson.adaptive_sizes, lesson.uniform_sizes])
        realised = model.bind(lesson.prompt_ids).realised(lesson.rewards, sizes, norms)
        before, unequal = self.holding, not np.array_equal(*sizes)
        self._guard.update(realised.values, realised.noise, unequal=unequal, held=lesson.guard_holding)
        if self.holding != before:
            state = self._guard.state()
            logger.warning(
                "step %d: %s; realised variance ratio %.3f +- %.3f",
                lesson.step,
                "falling back to uniform groups" if self.holding else "allocating by the policy again",
                state.ratio,
                state.standard_error,
            )
