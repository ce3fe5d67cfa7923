"""How a stream learns: settled groups are gathered into blocks, and a block is a step of a ``RolloutAllocator``.

So guard, quarantine, scores, histories, metrics and checkpoints are the allocator's own. The prediction that a block is
judged and learnt by is made when it is learnt: it has seen none of the block's rewards.

Notation: B groups in the block.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from viprl._arrays import FloatArray, IntArray
from viprl.allocation import VIP
from viprl.allocator import RolloutAllocator
from viprl.feedback.rewards import Rewards, read_flat
from viprl.plan import Plan
from viprl.prediction.base import Prediction, PromptId
from viprl.selecting import Selected
from viprl.selection import LEFT, Coverage
from viprl.streaming.offers import LeftOffer, Settled, Ticket


class Given(VIP):
    """Group sizes that were decided before, offer by offer."""

    def __init__(self, sizes: IntArray) -> None:
        self.sizes = sizes

    def allocate(self, prediction: Prediction, **problem: Any) -> IntArray:  # type: ignore[override]
        """The sizes."""
        return self.sizes


class BlockLearner(RolloutAllocator):
    """An allocator whose steps are blocks of settled groups."""

    @property
    def coverage(self) -> Coverage:
        """How training has covered the prompts."""
        return self._selector.coverage

    @property
    def selection_name(self) -> str:
        """The way prompts are chosen."""
        return self._selector.policy.name

    def holds(self, cold_share: float) -> bool:
        """Whether offers with this share of cold prompts get uniform groups; see ``Guard.replaces``."""
        return isinstance(self.policy, VIP) and self._feedback.replaces(cold_share)

    def read(self, size: int, rewards: Any, successes: Any) -> tuple[FloatArray, FloatArray | None]:
        """(n,) rewards and successes of one group, checked as ``observe`` would; remembers what values rewards have.

        Raises:
            InvalidInputError: extra rollouts, infinite rewards, or rewards of a kind the predictor does not take.
        """
        sizes = np.array([size])
        flat = read_flat([rewards], sizes)
        told = None if successes is None else read_flat([successes], sizes, "successes")
        source = (flat if told is None else told).tolist()
        known = self.reward_values
        plain = self.predictor.reward_kind == "binary" and (self.success_at is None or told is not None)
        if not (plain and known is not None and all(r != r or r in known for r in source)):
            given = None if told is None else [told]
            _, self.reward_values = self._outcomes(Rewards.of(flat, sizes), given, sizes)
        return flat, told

    def learn(
        self,
        groups: list[Settled],
        evidence: ArrayLike,
        left: list[LeftOffer],
        *,
        price: float,
        selects: bool,
    ) -> None:
        """Observe a block, all of it under the guard or none.

        Args:
            groups: B of them.
            evidence: (B,), see ``observe``.
            left: prompts left out since the last block.
            price: of a rollout now.
            selects: whether prompts may be left out at all.
        """
        ids = tuple(g.ticket.prompt_id for g in groups)
        wanted = np.array([g.ticket.wanted for g in groups], dtype=np.int64)
        used = np.array([g.ticket.size for g in groups], dtype=np.int64)
        held = groups[0].ticket.held
        selected = self._selected(groups, left, price, held) if selects else None
        plan = self._block_plan(ids, wanted, used, held, selected)
        told = [g.successes for g in groups]
        self.observe(
            plan,
            [g.rewards for g in groups],
            successes=None if told[0] is None else told,
            tokens=_known([g.tokens for g in groups]),
            seconds=_known([g.seconds for g in groups]),
            evidence=evidence,
        )

    def _block_plan(
        self, ids: tuple[PromptId, ...], wanted: IntArray, used: IntArray, held: bool, selected: Selected | None
    ) -> Plan:
        """The block as a plan: what the price wanted against uniform groups of the same number of rollouts."""
        prediction = self.predictor.predict(ids)
        priced = isinstance(self.policy, VIP)
        policy, sizes = (Given(wanted), wanted) if priced else (self.policy, used)
        bounds = (int(min(sizes.min(), self.min_group_size)), int(max(sizes.max(), self.max_group_size)))
        plan = Plan.of(
            ids,
            prediction,
            int(sizes.sum()),
            policy=policy,
            model=self.model,
            bounds=bounds,
            step=self.step,
            held=False,
            scale=None,
            selected=selected,
            start=0.0,
        )
        return dataclasses.replace(
            plan,
            group_sizes=used,
            budget=int(used.sum()),
            variance=self.model.bind(ids).variance(prediction, used),
            guard_holding=held,
            seconds=0.0,
        )

    def _selected(self, groups: list[Settled], left: list[LeftOffer], price: float, held: bool) -> Selected:
        rows: list[LeftOffer | Ticket] = [*left, *(g.ticket for g in groups)]
        reasons = [LEFT] * len(left) + [g.ticket.reason for g in groups]
        numbers = np.array([(r.worth, r.waited, r.mean, r.bernoulli_variance) for r in rows], dtype=np.float64)
        worth, waited, mean, spread = numbers.T.copy()
        return Selected(
            candidate_ids=tuple(r.prompt_id for r in rows),
            kept=np.arange(len(left), len(rows)),
            reason=np.array(reasons, dtype=np.int64),
            weight=np.ones(len(groups)),
            break_price=worth,
            price=price,
            waited=waited,
            mean=mean,
            bernoulli_variance=spread,
            policy=self._selector.policy.name,
            paused=held,
            visited=self.coverage.visited_share(),
            effective=self.coverage.effective(),
        )


def _known(values: list[float]) -> FloatArray | None:
    """A column, or None where a group did not tell."""
    array = np.array(values, dtype=np.float64)
    return None if np.isnan(array).any() else array
