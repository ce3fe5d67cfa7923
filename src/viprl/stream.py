"""StreamAllocator: the decision prompt by prompt, at a price, for trainers without a batch.

Notation: G mean group size, L <= n <= U the bounds of a group, N known prompts.
"""

from __future__ import annotations

import math
import os
import threading
from typing import Any, NamedTuple

import numpy as np

from viprl._arrays import FloatArray
from viprl._restore import RestoreReport
from viprl.advantages import PROMPT_WEIGHTINGS, group_advantages
from viprl.allocation import VIP, Policy, Uniform
from viprl.checkpoint import read_state, write_state
from viprl.errors import CheckpointError, InvalidInputError, PlanError
from viprl.feedback import Guard, OutageDetector
from viprl.feedback.rewards import read_flat
from viprl.prediction.base import Predictor, PromptId
from viprl.selection import SelectionPolicy, Top
from viprl.streaming.blocks import BlockLearner
from viprl.streaming.decision import Decider
from viprl.streaming.offers import LeftOffer, Settled, Ticket, columns_of, rows_from, settled_from, settled_state
from viprl.variance import VarianceModel

KEPT_BLOCKS = 1024  # blocks whose history rows wait to be fetched


class Offer(NamedTuple):
    """How many rollouts a prompt gets, and the ticket to settle them by; (0, None) where it is left out."""

    group_size: int
    ticket: int | None


class StreamAllocator:
    """Decides at every prompt how many rollouts it gets, without a batch, so that G a prompt are used on average.

    At the price y a prompt gets the n in [L, U] with the smallest v(n) + y n, v its predicted gradient variance; with
    ``candidates`` above 1 the n in {0} or [L, U] with the largest V(n) - y n, V its value to a step
    (``viprl.selection``). At a fixed price that is the optimum of the batch that the prompts make up.
    ``viprl.streaming.price`` states how the price moves and proves the bound: over any offers in a row the rollouts
    differ from what is due by at most 5 G, 1 % of 500 mean groups, whatever prompts come, however late results are, and
    across restarts.

    Results come back in any order, late, in part or never. Settled groups are learnt in blocks, at once where one of
    their prompts is offered again; a block is a step of the guard, the quarantine, the history and the metrics. A
    result of an older policy counts less: the prompt's logit is taken to have walked ``version_drift`` a version since.

    Every method may be called from any thread and from a coroutine: none waits for anything but the others. Most take
    microseconds; the settle that completes a block takes as long as a step of ``RolloutAllocator.observe``.

    Args:
        predictor, model, min_group_size, max_group_size, guard, quarantine, reward_values, success_at: as for
            ``RolloutAllocator``; the upper bound is 4 G by default.
        mean_group_size: G, rollouts a kept prompt gets on average where none is left out. Where some are, the budget is
            G for every ``candidates`` prompts offered.
        candidates: prompts offered for each that a stream without selection would have; 1: every prompt gets rollouts.
        selection: ``viprl.selection.Top()`` (default), ``Learnability()`` or ``UniformSelection()``.
        policy: ``VIP()`` (default), or ``Uniform()``, which gives every prompt G.
        block: settled groups that are learnt together.
        version_drift: standard deviation of a prompt's logit from one policy version to the next.

    Attributes:
        version: of the policy; ``policy_updated`` moves it.
        restored: what the last restore found in the prompt set, else None.

    Raises:
        TypeError, InvalidInputError: as ``RolloutAllocator``; or L <= G <= U does not hold.
        ConfigurationError: a selection that has no form without a batch.

    >>> stream = StreamAllocator(DiscountedBeta(), RLOO(), mean_group_size=8)   # doctest: +SKIP
    >>> n, ticket = stream.offer("prompt-1")                                    # doctest: +SKIP
    >>> stream.settle(ticket, rewards)                                          # doctest: +SKIP
    """

    def __init__(
        self,
        predictor: Predictor,
        model: VarianceModel,
        *,
        mean_group_size: float = 8,
        min_group_size: int = 3,
        max_group_size: int | None = None,
        candidates: int = 1,
        selection: SelectionPolicy | None = None,
        policy: Policy | None = None,
        guard: bool | Guard = True,
        quarantine: bool | OutageDetector = True,
        reward_values: tuple[float, float] | None = None,
        success_at: float | None = None,
        block: int = 128,
        version_drift: float = 0.05,
    ) -> None:
        upper = math.ceil(4 * mean_group_size) if max_group_size is None else max_group_size
        if not min_group_size <= mean_group_size <= upper:
            raise InvalidInputError(
                "min_group_size <= mean_group_size <= max_group_size must hold, but got "
                f"({min_group_size}, {mean_group_size}, {upper})"
            )
        if not (isinstance(policy, VIP | Uniform) or policy is None):
            raise InvalidInputError(f"a stream's policy must be VIP() or Uniform(), but got {policy!r}")
        if block < 1 or not 0 <= version_drift < math.inf or not candidates >= 1:
            raise InvalidInputError(
                "block >= 1, candidates >= 1 and 0 <= version_drift < infinity must hold, but got "
                f"(block={block}, candidates={candidates}, version_drift={version_drift})"
            )
        chosen = (Top() if selection is None else selection) if candidates > 1 else None
        self._learner = BlockLearner(
            predictor,
            model,
            min_group_size=min_group_size,
            max_group_size=upper,
            policy=policy,
            guard=guard,
            quarantine=quarantine,
            reward_values=reward_values,
            success_at=success_at,
            selection=chosen,
            candidates=candidates,
        )
        self._decider = Decider(self._learner, float(mean_group_size), int(candidates), chosen)
        self.mean_group_size, self.candidates = float(mean_group_size), int(candidates)
        self.block, self.version_drift = int(block), float(version_drift)
        self.version = 0
        self.restored: RestoreReport | None = None
        self._selects = chosen is not None
        self._lock = threading.RLock()
        self._flying: dict[int, Ticket] = {}
        self._pending: list[Settled] = []
        self._pending_ids: set[PromptId] = set()
        self._left: list[LeftOffer] = []
        self._tickets = self._abandoned = 0
        self._told: bool | None = None  # whether successes come with the rewards
        self._history: list[list[dict[str, Any]]] = []

    def __repr__(self) -> str:
        decider = self._decider
        return (
            f"StreamAllocator({self._learner.predictor!r}, {self._learner.model!r}, groups of {decider.lower} to "
            f"{decider.upper}, {self.mean_group_size:g} on average; {decider.price.offered} offers, "
            f"{len(self._flying)} in flight, price {decider.price.price:.3g})"
        )

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Tickets that are neither settled nor abandoned, oldest first."""
        return tuple(self._flying)

    @property
    def guard_holding(self) -> bool:
        """True while the guard replaces the price's group sizes by uniform ones."""
        return self._learner.guard_holding

    def offer(self, prompt_id: PromptId) -> Offer:
        """How many rollouts this prompt gets now; the budget is booked with the answer.

        Raises:
            UnknownPromptError: the predictor does not know the id.
        """
        with self._lock:
            if prompt_id in self._pending_ids:
                self.learn()
            found = self._decider.decide(prompt_id, self._tickets, self.version)
            if isinstance(found, Ticket):
                self._tickets += 1
                self._flying[found.number] = found
                return Offer(found.size, found.number)
            self._left.append(found)
            if len(self._left) >= 8 * self.block * self.candidates:  # nobody settles
                self._learner.coverage.learn([o.prompt_id for o in self._left], [False] * len(self._left))
                self._left = []
            return Offer(0, None)

    def settle(
        self,
        ticket: int,
        rewards: Any,
        *,
        successes: Any = None,
        version: int | None = None,
        tokens: float | None = None,
        seconds: float | None = None,
    ) -> None:
        """Learn from the rollouts of an offer. A call that raises has changed nothing.

        Args:
            ticket: from ``offer``.
            rewards: at most the offer's rollouts; None and NaN mean missing, and so are those that are not there.
            successes: as for ``RolloutAllocator.observe``; with every ticket or with none.
            version: of the policy that made the rollouts, the oldest of several; the offer's by default.
            tokens, seconds: that the group took, for the history.

        Raises:
            PlanError: the ticket is not in flight: never given, or settled or abandoned before.
            InvalidInputError: extra rollouts, rewards of a kind the predictor does not take, a version yet to come.
        """
        with self._lock:
            found = self._of(ticket)
            made = found.version if version is None else int(version)
            if made > self.version:
                raise InvalidInputError(f"rollouts must be of a policy up to version {self.version}, but got {made}")
            if self._told is not None and self._told != (successes is not None):
                raise InvalidInputError("`successes` must come with every ticket or with none, but got both")
            flat, told = self._learner.read(found.size, rewards, successes)
            self._told = successes is not None
            del self._flying[ticket]
            extras = (math.nan if x is None else float(x) for x in (tokens, seconds))
            self._pending.append(Settled(found, flat, told, self.version - made, *extras))
            self._pending_ids.add(found.prompt_id)
            if len(self._pending) >= self.block:
                self.learn()

    def abandon(self, ticket: int) -> None:
        """Give a ticket up: its rollouts never come. They stay booked, as most of the work was done.

        Raises:
            PlanError: as ``settle``.
        """
        with self._lock:
            self._of(ticket)
            del self._flying[ticket]
            self._abandoned += 1

    def abandon_older(self, versions: int) -> tuple[int, ...]:
        """Give up every ticket offered more than so many policy versions ago; returns them."""
        with self._lock:
            old = tuple(n for n, t in self._flying.items() if self.version - t.version > versions)
            for number in old:
                self.abandon(number)
            return old

    def policy_updated(self, version: int | None = None) -> None:
        """Tell that the policy that makes rollouts changed: by one version, or to this one.

        Raises:
            InvalidInputError: a version before the present one.
        """
        with self._lock:
            new = self.version + 1 if version is None else int(version)
            if new < self.version:
                raise InvalidInputError(f"policy versions must not go back, but got {new} after {self.version}")
            self.version = new

    def advantages(self, ticket: int, rewards: Any, *, prompt_weighting: str = "equal") -> FloatArray:
        """(n,) advantages of a ticket's rollouts, before it is settled, by the model's own estimator.

        Args:
            ticket: in flight.
            rewards: as for ``settle``; missing ones get 0.
            prompt_weighting: "equal" multiplies by (mean group size)/(rewards present), so that every prompt weighs the
                same in a loss that averages over rollouts: the mean is G, or a running one where prompts are left out.
                "rollout" leaves it out, for a loss that averages each group first.

        Raises:
            PlanError: as ``settle``.
            InvalidInputError: rewards that do not fit, or a model whose estimator has no advantages here.
        """
        with self._lock:
            size, mean = self._of(ticket).size, self._decider.kept_size
        model, flat = self._learner.model, read_flat([rewards], np.array([size]))
        found = group_advantages([flat], [size], model.estimator, epsilon=model.epsilon)
        present = int(np.count_nonzero(~np.isnan(flat)))
        if prompt_weighting not in PROMPT_WEIGHTINGS:
            raise InvalidInputError(
                f"`prompt_weighting` must be one of {PROMPT_WEIGHTINGS}, but got {prompt_weighting!r}"
            )
        return found * (mean / present) if prompt_weighting == "equal" and present else found

    def learn(self) -> None:
        """Learn from what is settled now, without waiting for a whole block."""
        with self._lock:
            for held in (False, True):
                groups = [g for g in self._pending if g.ticket.held is held]
                if groups:
                    left, self._left = self._left, []
                    self._learner.learn(
                        groups, self._evidence(groups), left, price=self._decider.price.price, selects=self._selects
                    )
                    self._history.append(self._learner.history_rows())
            self._pending, self._pending_ids = [], set()
            del self._history[:-KEPT_BLOCKS]
            self._decider.paused = self._selects and self._learner.coverage.narrow

    def explain(self, prompt_id: PromptId) -> str:
        """What an offer of this prompt would get now, and why, in words and numbers; changes nothing."""
        with self._lock:
            text = self._decider.explain(prompt_id)
            for ticket in (t for t in self._flying.values() if t.prompt_id == prompt_id):
                text += f" In flight: ticket {ticket.number} with {ticket.size} rollouts."
            return text

    def metrics(self) -> dict[str, float]:
        """The last block's numbers (``RolloutAllocator.metrics``) and the stream's; keys start with ``viprl/``."""
        with self._lock:
            price = self._decider.price
            stream = {
                "offered": price.offered,
                "in_flight": len(self._flying),
                "abandoned": self._abandoned,
                "stream_price": price.price,
                "budget_debt": price.debt,
                "kept_group_size": self._decider.kept_size,
                "policy_version": self.version,
            }
            return self._learner.metrics() | {f"viprl/{name}": float(value) for name, value in stream.items()}

    def history_rows(self) -> list[dict[str, Any]]:
        """Rows of the blocks learnt since the last call, in the history schema; ``step`` counts blocks."""
        with self._lock:
            rows = [row for block in self._history for row in block]
            self._history = []
            return rows

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to one file, atomically; tickets in flight are part of it."""
        with self._lock:
            state = self.state_dict()
        write_state(path, state)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], predictor: Predictor, model: VarianceModel, **kwargs: Any
    ) -> StreamAllocator:
        """A stream with the saved state; see ``RolloutAllocator.load``. Tickets in flight may be settled as ever.

        Raises:
            CheckpointError: as ``RolloutAllocator.load``; or the state of no stream, or of one with another budget.
        """
        stream = cls(predictor, model, **kwargs)
        stream.load_state_dict(read_state(path))
        return stream

    def state_dict(self) -> dict[str, Any]:
        """What the next offer and the next settle need."""
        with self._lock:
            return {
                "budget": self._budget(),
                "learner": self._learner.state_dict(),
                "decider": self._decider.state_dict(),
                "version": self.version,
                "counts": [self._tickets, self._abandoned],
                "told": self._told,
                "flying": columns_of(self._flying.values(), Ticket),
                "pending": settled_state(self._pending),
                "left": columns_of(self._left, LeftOffer),
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state_dict()``; offers then continue bit for bit.

        Raises:
            CheckpointError: see ``load``.
        """
        if state.get("budget") != self._budget():
            raise CheckpointError(
                f"the checkpoint must be of a stream with {self._budget()}, but got {state.get('budget')}"
            )
        with self._lock:
            self._learner.load_state_dict(state["learner"])
            self.restored = self._learner.restored
            self._decider.load_state_dict(state["decider"])
            self.version, self._told = int(state["version"]), state["told"]
            self._tickets, self._abandoned = (int(n) for n in state["counts"])
            self._flying = {t.number: t for t in rows_from(state["flying"], Ticket)}
            self._pending = settled_from(state["pending"])
            self._pending_ids = {g.ticket.prompt_id for g in self._pending}
            self._left = rows_from(state["left"], LeftOffer)
            self._history = []

    def _budget(self) -> dict[str, Any]:
        selection = self._learner.selection_name if self._selects else None
        return {"mean_group_size": self.mean_group_size, "candidates": self.candidates, "selection": selection}

    def _of(self, ticket: int) -> Ticket:
        found = self._flying.get(ticket)
        if found is None:
            past = isinstance(ticket, int) and 0 <= ticket < self._tickets
            what = "was settled or abandoned before" if past else "was never given by this stream"
            raise PlanError(f"a ticket must be in flight, but {ticket!r} {what}")
        return found

    def _evidence(self, groups: list[Settled]) -> FloatArray:
        """(B,) what a rollout of each group tells of the policy as it is now.

        A rate of n rollouts has the variance 1/(n p(1-p)) on the scale of logits; s versions of a walk with deviation d
        add s d^2, so n rollouts tell as much as n / (1 + n p(1-p) s d^2).
        """
        rows = [(g.ticket.size, g.ticket.bernoulli_variance, g.age) for g in groups]
        size, spread, age = np.array(rows, dtype=np.float64).T
        return np.asarray(1.0 / (1.0 + size * spread * age * self.version_drift**2), dtype=np.float64)
