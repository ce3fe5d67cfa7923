"""Protocol C: synthetic prompts whose success probabilities move in known ways.

Each event is something that happens to real runs: prompts get solved, others are forgotten, the verifier goes down,
the policy jumps. What a rule loses in the steps after an event is the price of its memory.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import expit

from viprl._arrays import FloatArray, IntArray
from viprl.errors import InvalidInputError
from viprl.replay.log import RewardKind
from viprl.replay.worlds.base import Step
from viprl.replay.worlds.simulated import SimulatedStep

EventKind = Literal["solved", "forgotten", "outage", "jump"]


@dataclass(frozen=True)
class Event:
    """Something that happens at one step.

    Attributes:
        kind: "solved" and "forgotten" move a share of the prompts to success probability .98 and .02; "jump" adds
            ``size`` to every prompt's logit; "outage" tells the predictor zero successes for ``length`` steps.
        at: when, as a fraction of the run, in [0, 1).
        share: of the prompts, for "solved" and "forgotten".
        size: in logits, for "jump".
        length: as a fraction of the run, for "outage".
    """

    kind: EventKind
    at: float
    share: float = 0.2
    size: float = 1.5
    length: float = 0.06

    def __post_init__(self) -> None:
        if self.kind not in ("solved", "forgotten", "outage", "jump"):
            raise InvalidInputError(f"an event must be solved, forgotten, outage or jump, but got {self.kind!r}")
        if not 0 <= self.at < 1 or not 0 < self.share <= 1 or not 0 < self.length <= 1:
            raise InvalidInputError(f"0 <= at < 1, 0 < share <= 1 and 0 < length <= 1 must hold, but got {self}")


DEFAULT_EVENTS = (
    Event("solved", 0.25),
    Event("forgotten", 0.45),
    Event("outage", 0.6),
    Event("jump", 0.8),
)
SOLVED_LOGIT = 3.9


class DriftingPrompts:
    """A pool whose logits start at a mixture (a third nearly dead, the rest spread) and change by events and a trend.

    Args:
        prompts, batch, steps: N, B and T.
        group_size: mean rollouts of a prompt.
        events: in any order; "after" phases are named after the latest one.
        trend: logits gained per step by every prompt, a policy that slowly learns.
        world_seed: of the population; the run's seed draws the orders and rollouts.

    Attributes:
        embeddings: (N, 16) unit vectors whose direction says something about a prompt's starting logit.
    """

    best_name = "oracle"
    rewards: RewardKind = "binary"

    def __init__(
        self,
        *,
        prompts: int = 1024,
        batch: int = 128,
        steps: int = 160,
        group_size: float = 8,
        events: Sequence[Event] = DEFAULT_EVENTS,
        trend: float = 0.003,
        world_seed: int = 0,
    ) -> None:
        if not 1 <= batch <= prompts or steps < 1:
            raise InvalidInputError(
                "1 <= batch <= prompts and steps >= 1 must hold, but got "
                f"(batch={batch}, prompts={prompts}, steps={steps})"
            )
        self.batch, self.n_steps, self.trend = batch, steps, trend
        self.group_size, self.budget = group_size, round(group_size * batch)
        self.events = sorted(events, key=lambda event: event.at)
        rng = np.random.default_rng(world_seed)
        dead = rng.random(prompts) < 1 / 3
        self._logit = np.where(dead, rng.normal(-4.5, 0.7, prompts), rng.normal(0.0, 1.8, prompts))
        self._fate = rng.random(prompts)
        self.embeddings = _embeddings(self._logit, rng)
        self.prompt_ids = tuple(f"synthetic-{q:05d}" for q in range(prompts))

    def probabilities(self, index: int) -> FloatArray:
        """(N,) success probabilities at step ``index`` (from 0)."""
        logit = self._logit + self.trend * index
        for event in self.events:
            if index < round(event.at * self.n_steps):
                continue
            if event.kind == "jump":
                logit = logit + event.size
            elif event.kind == "solved":
                logit = np.where(self._fate < event.share, SOLVED_LOGIT, logit)
            elif event.kind == "forgotten":
                logit = np.where(self._fate > 1 - event.share, -SOLVED_LOGIT, logit)
        return np.asarray(expit(logit), dtype=np.float64)

    def phase(self, index: int) -> tuple[str, bool]:
        """The name of the phase of step ``index``, and whether it lies in an outage."""
        name, silent = "start", False
        for event in self.events:
            start = round(event.at * self.n_steps)
            if index < start:
                break
            if event.kind == "outage" and index < start + max(round(event.length * self.n_steps), 1):
                name, silent = "outage", True
            else:
                name, silent = f"after {event.kind}", False
        return name, silent

    def run(self, seed: int) -> Iterator[Step]:
        """The steps of one simulated run, in order."""
        order_rng = np.random.default_rng([seed, 1])
        order = order_rng.permutation(len(self.prompt_ids))
        cursor = 0
        for index in range(self.n_steps):
            if cursor + self.batch > len(order):
                order, cursor = order_rng.permutation(len(order)), 0
            rows = order[cursor : cursor + self.batch]
            cursor += self.batch
            p = self.probabilities(index)
            name, silent = self.phase(index)
            rng = np.random.default_rng([seed, 2, index])
            yield SimulatedStep(index, name, rows, p[rows], self.budget, rng, _AnyOthers(p, rng), silent=silent)

    def offering(self, candidates: int) -> DriftingPrompts:
        """The same world with so many times the prompts in a step, for the same rollouts."""
        wider = copy.copy(self)
        wider.batch, wider.group_size = candidates * self.batch, self.group_size / candidates
        return wider

    def describe(self) -> dict[str, object]:
        """What the report says of the protocol."""
        return {
            "protocol": "drift",
            "prompts": len(self.prompt_ids),
            "steps": self.n_steps,
            "batch": self.batch,
            "mean_group_size": float(self.group_size),
            "events": [f"{event.kind} at step {round(event.at * self.n_steps)}" for event in self.events],
        }


class _AnyOthers:
    def __init__(self, p: FloatArray, rng: np.random.Generator) -> None:
        self.p, self.rng = p, rng

    def __call__(self, count: int) -> tuple[IntArray, FloatArray]:
        rows = self.rng.integers(0, len(self.p), count)
        return rows, self.p[rows]


def _embeddings(logit: FloatArray, rng: np.random.Generator, dimensions: int = 16) -> FloatArray:
    signal = (logit - logit.mean()) / logit.std()
    vectors = rng.normal(size=(len(logit), dimensions))
    vectors[:, 0] += 1.5 * signal
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float64)
