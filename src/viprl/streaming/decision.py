"""The decision about one offer: unit prices against the price, exploration and rest, guard, bound of the debt.

Notation: G mean group size, L <= n <= U the bounds of a group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from viprl.allocation import Uniform
from viprl.prediction.base import PromptId
from viprl.selection import CHOSEN, EXPLORED, LEFT, OVERDUE, SelectionPolicy, UniformSelection
from viprl.streaming.blocks import BlockLearner
from viprl.streaming.offers import LeftOffer, Ticket, draw
from viprl.streaming.price import StreamPrice
from viprl.streaming.units import UnitPrices

RECENT = 64.0  # offers that running averages reach back


class Decider:
    """Decides about offers; its state is the price's and a few running averages.

    Args:
        learner: what is known; read only.
        mean_group_size, candidates, selection: as of the stream; selection None where all prompts are kept.
    """

    def __init__(
        self, learner: BlockLearner, mean_group_size: float, candidates: int, selection: SelectionPolicy | None
    ) -> None:
        self._learner, self._mean, self._candidates, self._selection = learner, mean_group_size, candidates, selection
        self.lower, self.upper = learner.min_group_size, learner.max_group_size
        self._units = UnitPrices(learner.predictor, learner.model, self.lower, self.upper, selection)
        self.price = StreamPrice(mean_group_size, candidates, self.upper, self.lower if selection is None else 0)
        self.kept_size = mean_group_size  # of a prompt that is kept, on average
        self._cold, self._overdue = 1.0, 0.0  # shares of the offers, of the kept
        self.paused = False  # training has narrowed to few prompts

    def decide(self, prompt_id: PromptId, number: int, version: int) -> Ticket | LeftOffer:
        """The ticket of that number, or the note that the prompt is left out; the budget is booked.

        Raises:
            UnknownPromptError: the predictor does not know the id.
        """
        price, luck = self.price, 3 * self.price.offered
        belief, gains, worth = self._units.of(prompt_id, draw(luck))
        self._units.meet(belief)
        self._cold += (belief.cold - self._cold) / RECENT
        held = self._learner.holds(self._cold)
        waited = 0.0 if self._selection is None else float(self._learner.coverage.waited((prompt_id,))[0])
        reason = self._reason(waited, held, draw(luck + 1))
        bar = {CHOSEN: worth, LEFT: 0.0}.get(reason, math.inf)
        row = np.full(self.upper, bar)
        np.minimum(gains, bar, out=row[self.lower :])
        price.meet(row)
        wanted = self.lower + int(np.count_nonzero(gains >= price.price))
        size = 0
        if reason != LEFT and bar >= price.price:
            uniform = held or isinstance(self._learner.policy, Uniform)
            size = math.floor(self._mean) + (draw(luck + 2) < self._mean % 1) if uniform else wanted
        granted = price.bounded(size, self.lower, self.upper)
        price.give(granted)
        note = (belief.mean, belief.bernoulli_variance, worth, waited)
        if not granted:
            return LeftOffer(prompt_id, *note)
        if not size:
            reason = EXPLORED  # the budget's bound asked for a group
        if self._selection is not None:
            self.kept_size += (granted - self.kept_size) / RECENT
            self._overdue += ((reason == OVERDUE) - self._overdue) / RECENT
        return Ticket(
            number, prompt_id, granted, wanted if held else granted, held, version, reason, price.price, *note
        )

    def _reason(self, waited: float, held: bool, luck: float) -> int:
        """Why the prompt may get rollouts: CHOSEN if it is worth the price, otherwise whatever it is worth; or LEFT."""
        selection = self._selection
        if selection is None:
            return CHOSEN
        if held or self.paused or isinstance(selection, UniformSelection):
            chance = self.price.target / self._mean if held else 1.0 / self._candidates
            return EXPLORED if luck < chance else LEFT
        if luck < selection.floor / self._candidates:
            return EXPLORED
        overdue = selection.max_rest is not None and waited >= selection.max_rest and self._overdue < 0.5
        return OVERDUE if overdue else CHOSEN

    def explain(self, prompt_id: PromptId) -> str:
        """What an offer of this prompt would get now, and why; pure."""
        belief, gains, worth = self._units.of(prompt_id, 0.5)
        price = self.price.price
        n = self.lower + int(np.count_nonzero(gains >= price))
        history = "no rollouts of its own seen yet" if belief.cold else "with history of its own"
        text = (
            f"{prompt_id}: {n if worth >= price else 0} rollouts at the price of {price:.3g} a rollout (bounds "
            f"[{self.lower}, {self.upper}], {self._mean:g} on average). Predicted success probability "
            f"{belief.mean:.3f}, reward variance {belief.reward_variance:.4f}, {history}. "
        )
        if worth < price:
            text += f"Left out, worth {worth:.3g} a rollout at its best group size, unless drawn to explore."
        elif n < self.upper:
            text += f"One rollout more would be worth {gains[n - self.lower]:.3g}."
        else:
            text += "The upper bound stops it."
        return text + (" The guard holds uniform groups." if self._learner.guard_holding else "")

    def state_dict(self) -> dict[str, Any]:
        return {
            "price": self.price.state_dict(),
            "units": self._units.state_dict(),
            "averages": [self._cold, self._overdue, self.kept_size],
            "paused": self.paused,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.price.load_state_dict(state["price"])
        self._units.load_state_dict(state["units"])
        self._cold, self._overdue, self.kept_size = (float(x) for x in state["averages"])
        self.paused = bool(state["paused"])
