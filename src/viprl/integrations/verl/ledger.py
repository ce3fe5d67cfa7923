"""Which rows of a batch answer which plan.

verl names a group by a fresh uid every step and returns rows in any order, with rows missing where a rollout failed and
padding rows added. The ledger remembers which uid stands for which position of which plan and hands rewards and norms
back in plan order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from viprl._arrays import FloatArray
from viprl.errors import ConfigurationError, InvalidInputError, PlanError, ViprlError
from viprl.feedback import reached
from viprl.plan import Plan


class MissingRewardsError(ViprlError, RuntimeError):
    """Too many rollouts of a step came back without a reward."""


@dataclass(frozen=True)
class Answer:
    """What came back for one plan.

    Attributes:
        plan: the plan.
        rewards: (C,) in plan order, NaN for planned rollouts without a reward. Within a group in the order of the rows.
        squared_norms: (C,) of the same rollouts, NaN where a rollout is missing or its norm was not measured.
        successes: (C,) what defines success where that is not the reward itself; NaN where unknown.
        tokens: (B,) response tokens of the group's rows.
    """

    plan: Plan
    rewards: FloatArray
    squared_norms: FloatArray
    successes: FloatArray
    tokens: NDArray[np.int64]

    @property
    def planned(self) -> int:
        """C."""
        return len(self.rewards)

    @property
    def missing(self) -> int:
        """Planned rollouts without a reward."""
        return int(np.isnan(self.rewards).sum())

    @property
    def empty_groups(self) -> int:
        """Groups without any reward."""
        present = np.bincount(self.plan.rows()[~np.isnan(self.rewards)], minlength=len(self.plan))
        return int(np.count_nonzero(present == 0))


def parse_key(key: str) -> tuple[str, int, int]:
    """(uid, session, output) of a trajectory's key ``{uid}_{session}_{output}``."""
    parts = key.rsplit("_", 2)
    if len(parts) != 3 or not (parts[1].isdigit() and parts[2].isdigit()):
        raise InvalidInputError(f"a trajectory's key must be uid_session_output, but got {key!r}")
    return parts[0], int(parts[1]), int(parts[2])


class PlanLedger:
    """Plans whose rollouts are under way."""

    def __init__(self) -> None:
        self._plans: list[Plan] = []
        self._place: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._plans)

    @property
    def groups(self) -> int:
        """Groups whose rollouts are under way."""
        return len(self._place)

    def weights(self) -> dict[str, float]:
        """uid -> what the selection multiplies the advantages of an open plan's group by; empty where all are 1."""
        weights = [plan.prompt_weights.tolist() for plan in self._plans]
        if all(weight == 1.0 for plan in weights for weight in plan):
            return {}
        return {uid: weights[number][position] for uid, (number, position) in self._place.items()}

    def open(self, plan: Plan, uids: Sequence[str]) -> None:
        """Remember that B uids stand for the groups of a plan, in plan order."""
        if len(uids) != len(plan) or len(set(uids)) != len(uids) or any(uid in self._place for uid in uids):
            raise PlanError(f"a plan needs one new uid per group, but got {len(uids)} uids for {len(plan)} groups")
        number = len(self._plans)
        self._plans.append(plan)
        self._place.update({str(uid): (number, position) for position, uid in enumerate(uids)})

    def order(self, keys: Sequence[str]) -> list[int]:
        """Indices that sort trajectories by plan, position and session, unknown ones last: an order that repeats.

        Raises:
            ConfigurationError: a session has several outputs; each would count as a rollout of its own.
        """
        ranks = []
        for i, key in enumerate(keys):
            uid, session, output = parse_key(key)
            if output > 0:
                raise ConfigurationError(
                    "an agent loop must return one output per session with adaptive rollouts, since the group's size "
                    f"counts sessions, but session {session} returned at least {output + 1}; merge a session's turns "
                    "into one output (as verl's tool_agent does)"
                )
            ranks.append((*self._place.get(uid, (len(self._plans), 0)), session, i))
        return [rank[-1] for rank in sorted(ranks)]

    def settle(
        self,
        uids: Sequence[str],
        rewards: ArrayLike,
        tokens: ArrayLike,
        *,
        squared_norms: ArrayLike | None = None,
        successes: ArrayLike | None = None,
        max_missing: float,
        step: int,
    ) -> list[Answer]:
        """Rewards and norms of a batch in plan order; every open plan is closed.

        Args:
            uids: (R,) uid of every row; padding rows must be left out.
            rewards: (R,), NaN for missing.
            tokens: (R,) response tokens.
            squared_norms: (R,) of the rows' gradients, NaN where unknown; None where none is measured.
            successes: (R,) NaN where missing; None where the reward itself tells.
            max_missing: largest share of the planned rollouts that may come back without a reward.
            step: named in errors.

        Raises:
            PlanError: a row belongs to no open plan, or a group has more rows than planned.
            MissingRewardsError: more rewards are missing than ``max_missing`` allows.
        """
        values, lengths = np.asarray(rewards, float), np.asarray(tokens, np.int64)
        norms, outcomes = (
            np.full(len(values), np.nan) if given is None else np.asarray(given, float)
            for given in (squared_norms, successes)
        )
        answers = [_unanswered(plan) for plan in self._plans]
        starts = [np.cumsum(plan.group_sizes) - plan.group_sizes for plan in self._plans]
        filled = [np.zeros(len(plan), dtype=np.int64) for plan in self._plans]
        for uid, reward, norm, outcome, length in zip(uids, values, norms, outcomes, lengths, strict=True):
            place = self._place.get(uid)
            if place is None:
                raise PlanError(f"every row must answer an open plan, but uid {uid!r} of step {step} answers none")
            number, q = place
            answer, size = answers[number], int(self._plans[number].group_sizes[q])
            if filled[number][q] == size:
                raise PlanError(
                    f"a group must have at most its planned rows, but uid {uid!r} of step {step} has more than {size}"
                )
            row = starts[number][q] + filled[number][q]
            answer.rewards[row], answer.squared_norms[row], answer.successes[row] = reward, norm, outcome
            answer.tokens[q] += length
            filled[number][q] += 1
        self._plans, self._place = [], {}
        _check_missing(answers, max_missing, step)
        return answers


def _unanswered(plan: Plan) -> Answer:
    rewards, norms, successes = np.full((3, int(plan.group_sizes.sum())), np.nan)
    return Answer(plan, rewards, norms, successes, np.zeros(len(plan), dtype=np.int64))


def _check_missing(answers: list[Answer], max_missing: float, step: int) -> None:
    planned, missing = (sum(getattr(answer, name) for answer in answers) for name in ("planned", "missing"))
    if planned and missing / planned > max_missing:
        empty = sum(answer.empty_groups for answer in answers)
        raise MissingRewardsError(
            "missing rewards / planned rollouts <= viprl.max_missing must hold, but got "
            f"{missing} / {planned} = {missing / planned:.3f} > {max_missing} in step {step} ({empty} prompts have no "
            "reward at all); look for 'Error in _run_prompt' (rollouts) and 'the reward function raised' (rewards) in "
            "the logs of the agent loop workers"
        )


def extra_rewards(extra_fields: Sequence[Any], name: str, threshold: float | None = None) -> FloatArray:
    """(R,) what the reward function returned under a name beside its score, NaN where it gave nothing; with a threshold
    whether it was reached.

    Raises:
        ConfigurationError: no row of the batch has that name.
    """
    infos = [(getattr(extra, "data", extra) or {}).get("reward_extra_info") or {} for extra in extra_fields]
    if infos and not any(name in info for info in infos):
        raise ConfigurationError(
            f"success_reward must name a number in the dict that the reward function returns, but got {name!r}; names: "
            f"{sorted({key for info in infos for key in info})}"
        )
    return reached(np.array([np.nan if info.get(name) is None else float(info[name]) for info in infos]), threshold)


def repair_score_metrics(metrics: dict[str, Any], rewards: Sequence[float]) -> None:
    """Replace verl's score statistics, which one NaN spoils, by those of the rewards present; in place."""
    present = np.asarray(rewards, dtype=np.float64)
    present = present[~np.isnan(present)]
    for name in ("critic/score", "critic/rewards"):
        for statistic, function in (("mean", np.mean), ("max", np.max), ("min", np.min)):
            key = f"{name}/{statistic}"
            if key in metrics and len(present):
                metrics[key] = float(function(present))
