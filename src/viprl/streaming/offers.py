"""What a stream knows of its offers: tickets in flight, settled groups, and prompts that were left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from viprl._arrays import FloatArray
from viprl.prediction.base import PromptId


class Ticket(NamedTuple):
    """An offer that got rollouts.

    Attributes:
        number: names it, from 0 on in the order of the offers.
        prompt_id: whose.
        size: rollouts granted.
        wanted: rollouts that the price would have given; differs while the guard holds.
        held: whether the guard's uniform size was used.
        version: of the policy, at the offer.
        reason: index into ``viprl.selection.REASONS``.
        price: of a rollout, at the offer.
        mean, bernoulli_variance: believed at the offer.
        worth: price above which the prompt would have been left out; infinite without selection.
        waited: passes since the prompt's last group.
    """

    number: int
    prompt_id: PromptId
    size: int
    wanted: int
    held: bool
    version: int
    reason: int
    price: float
    mean: float
    bernoulli_variance: float
    worth: float
    waited: float


class LeftOffer(NamedTuple):
    """An offer that got none; attributes as of a ticket."""

    prompt_id: PromptId
    mean: float
    bernoulli_variance: float
    worth: float
    waited: float


class Settled(NamedTuple):
    """A group that has come back: its ticket, (n,) rewards and successes (NaN missing), the policy versions between."""

    ticket: Ticket
    rewards: FloatArray
    successes: FloatArray | None
    age: int
    tokens: float
    seconds: float


def columns_of(rows: Iterable[tuple[Any, ...]], kind: Any) -> dict[str, Any]:
    """NamedTuples of plain values as one list a field, for a checkpoint."""
    found = list(rows)
    return {name: [row[i] for row in found] for i, name in enumerate(kind._fields)}


def rows_from(columns: Mapping[str, Any], kind: Any) -> list[Any]:
    """The NamedTuples of ``columns_of``."""
    return [kind(*row) for row in zip(*(columns[name] for name in kind._fields), strict=True)]


def settled_state(groups: list[Settled]) -> dict[str, Any]:
    """Settled groups as arrays."""
    return {
        "tickets": columns_of((g.ticket for g in groups), Ticket),
        "rewards": np.concatenate([g.rewards for g in groups]) if groups else np.zeros(0),
        "successes": _joined(groups),
        "ages": [g.age for g in groups],
        "tokens": np.array([g.tokens for g in groups], dtype=np.float64),
        "seconds": np.array([g.seconds for g in groups], dtype=np.float64),
    }


def _joined(groups: list[Settled]) -> FloatArray | None:
    given = [g.successes for g in groups if g.successes is not None]
    return np.concatenate(given) if given else None


def settled_from(state: Mapping[str, Any]) -> list[Settled]:
    """The groups of ``settled_state``; all of them have successes, or none has."""
    tickets = rows_from(state["tickets"], Ticket)
    ends = np.cumsum(np.array([t.size for t in tickets], dtype=np.int64))[:-1]
    rewards = np.split(np.asarray(state["rewards"], dtype=np.float64), ends)
    told = state["successes"]
    successes = [None] * len(tickets) if told is None else np.split(np.asarray(told, dtype=np.float64), ends)
    extras = state["ages"], state["tokens"].tolist(), state["seconds"].tolist()
    return [Settled(*row) for row in zip(tickets, rewards, successes, *extras, strict=True)] if tickets else []


def draw(counter: int) -> float:
    """A number in (0, 1) that looks random and is a function of the counter (splitmix64, Steele et al. 2014)."""
    z = (counter * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (((z ^ (z >> 31)) >> 11) + 0.5) * 2.0**-53
