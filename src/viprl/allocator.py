"""RolloutAllocator: predict -> variance -> select, allocate; observe. The one place where the three steps meet.

Notation: B prompts in the batch, C rollouts of the step, L <= n_q <= U the bounds of a group's size.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from viprl._arrays import FloatArray, IntArray
from viprl._parts import check_bounds, named, part, per_group
from viprl._restore import RestoreReport, check_settings, restore_predictor
from viprl.allocation import VIP, Policy, Uniform
from viprl.checkpoint import read_state, write_state
from viprl.errors import InvalidInputError, PlanError
from viprl.feedback import FeedbackRecord, Guard, Lesson, OutageDetector, Rewards, read_rewards
from viprl.feedback.rewards import read_outcomes
from viprl.history import history_columns, rows_of
from viprl.plan import Plan
from viprl.prediction.base import Prediction, Predictor, PromptId
from viprl.selecting import Selected, Selector
from viprl.selection import SelectionPolicy
from viprl.variance import VarianceModel

logger = logging.getLogger("viprl")

REMEMBERED_PLANS = 4096  # plans that may be in flight or repeated by mistake
ValuePair = tuple[float, float]


class RolloutAllocator:
    """Decides which prompts of a step get rollouts, and how many, so that the budget teaches most.

    ``allocate`` (every prompt of the batch gets some) and ``select`` (those candidates that are worth it) are pure
    functions of (state, prompt ids, budget); ``observe`` is the only mutation, with ``observe_norms`` for gradient
    norms that come later.

    Args:
        predictor: success probabilities (or reward variances) of prompts; a ``viprl.prediction.Predictor``.
        model: gradient variance as a function of prediction and group size; a ``viprl.variance.VarianceModel``.
        min_group_size, max_group_size: bounds L, U on every group of a step.
        policy: how to allocate, a ``viprl.allocation.Policy``; the exact minimiser of the summed variance (``VIP()``)
            by default.
        guard: fall back to uniform groups while the realised variance is above uniform's; a ``Guard`` to tune it.
        quarantine: keep outages (rewards collapsing for many prompts at once) from the predictor; an
            ``OutageDetector`` to tune it.
        reward_values: the rewards (failure, success). By default {0, 1} and {-1, 1} are told apart by themselves.
        success_at: rewards from this one on are successes. The predictor learns these; advantages and the guard's
            measured variance go by the rewards themselves.
        selection: how ``select`` chooses, a ``viprl.selection.SelectionPolicy``; ``Learnability()`` by default.
        candidates: how many prompts ``select`` is offered for each that a step without selection would have.

    Attributes:
        step: number of steps observed.
        policy_steps: in how many of them the policy's groups were used, not the guard's uniform ones.
        restored: what the last restore found in the prompt set, else None.

    Raises:
        TypeError: a part that is a name, a class, or lacks a method of its base class. Subclass the base; an object
            that has its abstract methods without that is taken too.
        InvalidInputError: bounds or reward values that contradict each other.
    """

    def __init__(
        self,
        predictor: Predictor,
        model: VarianceModel,
        *,
        min_group_size: int = 3,
        max_group_size: int = 32,
        policy: Policy | None = None,
        guard: bool | Guard = True,
        quarantine: bool | OutageDetector = True,
        reward_values: tuple[float, float] | None = None,
        success_at: float | None = None,
        selection: SelectionPolicy | None = None,
        candidates: int = 4,
    ) -> None:
        beta, vip = "viprl.DiscountedBeta() or viprl.CalibratedPredictor(...)", "viprl.VIP() or viprl.Uniform()"
        self.predictor: Predictor = part(predictor, Predictor, "predictor", beta)
        self.model: VarianceModel = part(model, VarianceModel, "model", "viprl.RLOO() or viprl.DrGRPO()")
        self.policy: Policy = VIP() if policy is None else part(policy, Policy, "policy", vip)
        if self.model.learns and self.predictor.reward_kind == "real":
            raise InvalidInputError(
                f"a variance model that learns tells success from failure, but {type(predictor).__name__} predicts "
                "real rewards; use a formula (viprl.RLOO(), viprl.DrGRPO()) or a predictor of success probabilities"
            )
        check_bounds(min_group_size, max_group_size, reward_values, success_at)
        self.min_group_size, self.max_group_size = int(min_group_size), int(max_group_size)
        self.reward_values = None if reward_values is None else (float(reward_values[0]), float(reward_values[1]))
        self._declared = self.reward_values
        self.success_at = None if success_at is None else float(success_at)
        self.step = self.policy_steps = 0
        self.restored: RestoreReport | None = None
        if selection is not None:
            part(selection, SelectionPolicy, "selection", "viprl.selection.Learnability()")
        self._selector = Selector(selection, candidates=candidates)
        self._feedback = FeedbackRecord(guard, quarantine)
        self._unread = False  # real rewards under uniform groups were said to be unread
        self._visits: dict[PromptId, int] = {}
        self._observed: dict[str, None] = {}
        self._metrics: dict[str, float] = {}
        self._history: dict[str, list[Any]] = {}

    def __repr__(self) -> str:
        held = "; the guard holds uniform groups" if self.guard_holding else ""
        return (
            f"RolloutAllocator({self.predictor!r}, {self.model!r}, {self.policy!r}, groups of {self.min_group_size} to "
            f"{self.max_group_size}; {self.step} steps observed, the policy's groups used in {self.policy_steps}{held})"
        )

    @property
    def guard_holding(self) -> bool:
        """True while the guard replaces the policy's group sizes by uniform ones."""
        return self._feedback.holding

    def predict(self, prompt_ids: Sequence[PromptId]) -> Prediction:
        """The predictor's prediction for B prompts; pure."""
        return self.predictor.predict(prompt_ids)

    def allocate(self, prompt_ids: Sequence[PromptId], budget: int, *, scale: ArrayLike | None = None) -> Plan:
        """Group sizes for one step; pure: every process with the same state computes the same plan.

        Args:
            prompt_ids: the batch; an id may occur twice and then gets two groups.
            budget: C, spent exactly.
            scale: (B,) relative gradient noise of the prompts; equal by default.

        Raises:
            InfeasibleBudgetError: B * L <= C <= B * U does not hold.
            UnknownPromptError: the predictor does not know an id.
        """
        start = time.perf_counter()
        ids = named(prompt_ids)
        return self._plan(ids, self.predictor.predict(ids), budget, start, scale=scale)

    def select(
        self, candidate_ids: Sequence[PromptId], budget: int, *, prompts: int | None = None, nominal: int | None = None
    ) -> Plan:
        """Which candidates get rollouts, and how many; pure, and its draws are those of the step.

        How many are kept is part of the decision: the selection weighs more prompts with fewer rollouts against fewer
        with more (see ``viprl.selection``). The policy then divides the budget over the kept ones. While the guard
        holds, or once training has narrowed to few prompts, both are uniform.

        Args:
            candidate_ids: K prompts, a multiple of a step's or the whole data set; an id may occur twice.
            budget: C, spent exactly.
            prompts: how many to keep; None leaves it to the selection.
            nominal: how many a step without selection has; None is K / ``candidates``.

        Returns:
            The plan of the kept prompts, in the candidates' order, with ``kept``, ``left_out`` and ``explain``.

        Raises:
            InfeasibleBudgetError: no number of candidates can share the budget within the bounds.
            UnknownPromptError: the predictor does not know an id.
        """
        start = time.perf_counter()
        ids = named(candidate_ids)
        prediction = self.predictor.predict(ids)
        bounds, held = (self.min_group_size, self.max_group_size), self.guard_holding
        selected = self._selector.choose(
            ids, prediction, int(budget), bounds, step=self.step, prompts=prompts, nominal=nominal, paused=held
        )
        kept = tuple(ids[q] for q in selected.kept.tolist())
        return self._plan(kept, prediction[selected.kept], budget, start, selected=selected)

    def _plan(
        self,
        ids: tuple[PromptId, ...],
        prediction: Prediction,
        budget: int,
        start: float,
        *,
        scale: ArrayLike | None = None,
        selected: Selected | None = None,
    ) -> Plan:
        held = not isinstance(self.policy, Uniform) and self._feedback.replaces(float(prediction.cold.mean()))
        bounds = (self.min_group_size, self.max_group_size)
        more = {"step": self.step, "held": held, "scale": scale, "selected": selected, "start": start}
        return Plan.of(ids, prediction, int(budget), policy=self.policy, model=self.model, bounds=bounds, **more)  # type: ignore[arg-type]

    def observe(
        self,
        plan: Plan,
        rewards: Any,
        *,
        successes: Any = None,
        squared_norms: Any = None,
        tokens: ArrayLike | None = None,
        seconds: ArrayLike | None = None,
        evidence: ArrayLike | None = None,
    ) -> None:
        """Learn from the rollouts of a plan. A call that raises has changed nothing.

        Args:
            plan: from ``allocate`` or ``select`` of this allocator (or of one with the same state).
            rewards: B groups in plan order, each with at most its planned rewards, or C rewards in plan order;
                None and NaN mean missing.
            successes: 0 or 1 for every rollout, shaped as ``rewards`` are; None and NaN mean unknown. What the
                predictor learns where that is not the reward (accuracy, while accuracy and format are trained); -1 and
                1, or the declared ``reward_values``, will do too.
            squared_norms: squared norms of the rollouts' gradients, shaped as ``rewards`` are, in the same units at
                every step; NaN where unknown. Models that learn from them (``OutcomeMoments``) read them; formulas do
                not. Norms that are known only later go to ``observe_norms``.
            tokens, seconds: (B,) tokens and time that the groups took, for the history.
            evidence: (B,) in (0, 1], what a rollout of each group tells the predictor of successes; less than 1 where
                an older policy made it.

        Raises:
            InvalidInputError: extra rollouts, infinite rewards, or rewards of a kind the predictor does not take.
            PlanError: the plan was observed before, or made by a later state.
        """
        start = time.perf_counter()
        key = self._check(plan)
        read = read_rewards(rewards, plan.group_sizes)
        outcomes, values = self._outcomes(read, successes, plan.group_sizes)
        extras = [per_group(name, x, len(plan)) for name, x in (("tokens", tokens), ("seconds", seconds))]
        weight = per_group("evidence", evidence, len(plan))
        lesson = Lesson.of(plan, read, outcomes)
        norms = lesson.read_norms(squared_norms) if self.model.learns and squared_norms is not None else None
        # nothing above this line changes state, so a refused observation leaves the allocator as it was
        self.reward_values = values
        learnt = self._feedback.take(lesson, self.model, norms)
        if outcomes is None and self.predictor.reward_kind == "real":
            self.predictor.observe_rewards(plan.prompt_ids, read.means, read.variances, read.counts)
        elif outcomes is not None and learnt:
            self.predictor.observe(plan.prompt_ids, *(x if weight is None else x * weight for x in lesson.counts()))
        if plan.selected is not None:
            self._selector.learn(plan.selected)
        visits = []
        for prompt_id in plan.prompt_ids:
            visits.append(self._visits.get(prompt_id, 0))
            self._visits[prompt_id] = visits[-1] + 1
        self._history = history_columns(plan, read, outcomes, self.step, visits, *extras)
        self._observed[key] = None
        while len(self._observed) > REMEMBERED_PLANS:
            self._observed.pop(next(iter(self._observed)))
        self.step += 1
        self.policy_steps += not plan.guard_holding
        self._metrics = {**plan.metrics(), **self._seen(read, not learnt)}
        if outcomes is None:
            del self._metrics["viprl/dead_groups_predicted"]
        self._metrics["viprl/overhead_seconds"] = plan.seconds + time.perf_counter() - start

    def observe_norms(self, plan: Plan | str, squared_norms: Any) -> None:
        """Hand over gradient norms that came after ``observe``; formulas, which learn nothing from them, ignore them.

        Args:
            plan: an observed plan, or its ``key``. The last eight without norms are remembered.
            squared_norms: as for ``observe``.

        Raises:
            InvalidInputError: shapes that do not fit, or norms that are negative or infinite.
            PlanError: the plan was not observed, has its norms already, or lies too far back.
        """
        if not self.model.learns:
            return
        self._feedback.take_norms(plan if isinstance(plan, str) else plan.key, squared_norms, self.model)

    def metrics(self) -> dict[str, float]:
        """The last observed step's numbers for a logger; keys start with ``viprl/``; empty before the first.

        ``variance_ratio`` and ``realised_variance_ratio`` are of the groups that were used, predicted for this step and
        measured over past ones; ``policy_variance_ratio`` and ``policy_realised_variance_ratio`` of the policy's own,
        also while the guard holds them back.
        """
        return dict(self._metrics)

    def history_rows(self) -> list[dict[str, Any]]:
        """The last observed step in the history schema: one row per group with at least one reward."""
        return rows_of(self._history)

    def reliability(self) -> FloatArray:
        """(3, 10): rollouts, mean prediction and success rate in ten bins of the predicted probability."""
        return self._feedback.scores.reliability()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to one file, atomically."""
        write_state(path, self.state_dict())

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], predictor: Predictor, model: VarianceModel, **kwargs: Any
    ) -> RolloutAllocator:
        """An allocator with the saved state; arguments as for the constructor, and they must match the saved ones.

        A predictor over other prompts keeps what is known of those it shares; ``restored`` then says which ids are
        new, gone and kept.

        Raises:
            CheckpointError: damaged file, other format, other predictor, model, policy or bounds, other embeddings.
        """
        allocator = cls(predictor, model, **kwargs)
        allocator.load_state_dict(read_state(path))
        return allocator

    def state_dict(self) -> dict[str, Any]:
        """What the next step needs."""
        return {
            "settings": self._settings(),
            "step": self.step,
            "policy_steps": self.policy_steps,
            "reward_values": None if self.reward_values is None else list(self.reward_values),
            "predictor": self.predictor.state_dict(),
            "model": self.model.state_dict(),
            **self._feedback.state_dict(),
            "coverage": self._selector.state_dict(),
            "visit_ids": list(self._visits),
            "visits": np.array(list(self._visits.values()), dtype=np.int64),
            "observed": list(self._observed),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state_dict()``; the sequence of plans then continues bit for bit.

        Raises:
            CheckpointError: the state is of other settings, or of other reward values than were given here.
        """
        check_settings(state, {**self._settings(), "reward_values": self._declared})
        self.restored = restore_predictor(self.predictor, state["predictor"])
        self.step, self.policy_steps = int(state["step"]), int(state["policy_steps"])
        values = state["reward_values"]
        self.reward_values = self._declared if values is None else (float(values[0]), float(values[1]))
        self.model.load_state_dict(state["model"])
        self._feedback.load_state_dict(state)
        if "coverage" in state:  # states from before selection have none
            self._selector.load_state_dict(state["coverage"])
        self._visits = dict(zip(state["visit_ids"], state["visits"].tolist(), strict=True))
        self._observed = dict.fromkeys(state["observed"])
        self._metrics, self._history = {}, {}

    def _settings(self) -> dict[str, Any]:
        return {
            "predictor": type(self.predictor).__name__,
            "model": self.model.name,
            "policy": self.policy.name,
            "min_group_size": self.min_group_size,
            "max_group_size": self.max_group_size,
            "success_at": self.success_at,
        }

    def _check(self, plan: Plan) -> str:
        key = plan.key
        if key in self._observed:
            raise PlanError(f"a plan must be observed once, but the plan of step {plan.step} was observed before")
        if plan.step > self.step:
            raise PlanError(
                f"a plan must come from this allocator's past, but it is of step {plan.step}; step {self.step} is due"
            )
        return key

    def _outcomes(self, read: Rewards, given: Any, sizes: IntArray) -> tuple[Rewards | None, ValuePair | None]:
        """Successes of the rollouts (None for a predictor of real rewards), and the reward values as now known."""
        if self.predictor.reward_kind == "binary":
            try:
                return read_outcomes(read, given, sizes, success_at=self.success_at, reward_values=self.reward_values)
            except InvalidInputError:
                if given is not None or self._declared is not None or not isinstance(self.policy, Uniform):
                    raise
            if not self._unread:
                logger.warning("the rewards are not binary: uniform groups need no prediction, so none is learnt")
            self._unread = True
            return None, self.reward_values
        if given is not None:
            raise InvalidInputError(
                "`successes` are for predictors of success probabilities, but "
                f"{type(self.predictor).__name__} learns real rewards"
            )
        return None, self.reward_values

    def _seen(self, read: Rewards, quarantined: bool) -> dict[str, float]:
        skipped = int(np.count_nonzero(read.counts == 0))
        if skipped:
            logger.warning("step %d: %d prompts had no reward at all and were skipped", self.step - 1, skipped)
        if quarantined:
            logger.warning("step %d: rewards collapsed for many prompts at once; not learnt", self.step - 1)
        found = {
            "dead_groups_seen": float(np.count_nonzero(read.constant)),
            "missing_rewards": float(read.missing),
            "skipped_prompts": float(skipped),
            "quarantined": float(quarantined),
            **self._feedback.metrics(),
            **self.predictor.metrics(),
            **self.model.metrics(),
        }
        return {f"viprl/{name}": float(value) for name, value in found.items()}
