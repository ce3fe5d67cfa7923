"""Protocol B: a pool of prompts with known success probabilities, visited in a random order for some epochs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from viprl._arrays import FloatArray, IntArray
from viprl.errors import InvalidInputError
from viprl.replay.log import RewardKind
from viprl.replay.worlds.base import Step
from viprl.replay.worlds.simulated import SimulatedStep


class PromptPool:
    """Each epoch visits the pool in a fresh random order, ``batch`` prompts a step; a last short batch is left out.

    Args:
        prompt_ids: N ids.
        p: (N,) success probabilities.
        batch: prompts a step.
        group_size: mean rollouts of a prompt; the budget of a step is batch * group_size.
        epochs: passes over the pool; each is reported on its own.
        draws: "common": the same orders for every rule, which keeps paired comparisons sharp. "reference": one stream
            of random numbers for orders and rollouts, as in the script that the reference figures come from; after
            empty or very large groups the later orders differ between rules.
    """

    best_name = "oracle"
    rewards: RewardKind = "binary"

    def __init__(
        self,
        prompt_ids: Sequence[str],
        p: ArrayLike,
        *,
        batch: int = 512,
        group_size: float = 8,
        epochs: int = 2,
        draws: Literal["common", "reference"] = "common",
    ) -> None:
        self.p: FloatArray = np.asarray(p, dtype=np.float64)
        if self.p.shape != (len(prompt_ids),):
            raise InvalidInputError(f"one probability a prompt is needed, but got {self.p.shape} for {len(prompt_ids)}")
        if not ((self.p >= 0) & (self.p <= 1)).all():
            raise InvalidInputError("0 <= p <= 1 must hold for every prompt")
        if not 1 <= batch <= len(self.p):
            raise InvalidInputError(f"1 <= batch <= prompts must hold, but got (batch={batch}, prompts={len(self.p)})")
        self.prompt_ids = tuple(prompt_ids)
        self.batch, self.group_size, self.epochs, self.draws = batch, group_size, epochs, draws
        self.budget = round(group_size * batch)
        self.n_steps = epochs * (len(self.p) // batch)

    def run(self, seed: int) -> Iterator[Step]:
        """The steps of one simulated run, in order."""
        rng = np.random.default_rng(seed)
        orders = rng if self.draws == "reference" else np.random.default_rng([seed, 1])
        number = 0
        for epoch in range(1, self.epochs + 1):
            order = orders.permutation(len(self.p))
            for start in range(0, len(order) - self.batch + 1, self.batch):
                outcomes = rng if self.draws == "reference" else np.random.default_rng([seed, 2, number])
                rows = order[start : start + self.batch]
                following = _Following(self.p, order, start + self.batch)
                number += 1
                yield SimulatedStep(number, f"epoch {epoch}", rows, self.p[rows], self.budget, outcomes, following)

    def offering(self, candidates: int) -> PromptPool:
        """The same pool with so many times the prompts a step, gone through as much faster, for the same rollouts."""
        batch, size, epochs = candidates * self.batch, self.group_size / candidates, candidates * self.epochs
        return PromptPool(self.prompt_ids, self.p, batch=batch, group_size=size, epochs=epochs, draws=self.draws)

    def describe(self) -> dict[str, object]:
        """What the report says of the protocol."""
        return {
            "protocol": "pool",
            "prompts": len(self.prompt_ids),
            "steps": self.n_steps,
            "batch": self.batch,
            "epochs": self.epochs,
            "mean_group_size": float(self.group_size),
            "draws": self.draws,
        }


class _Following:
    """The prompts that the order visits next, beginning anew at its end."""

    def __init__(self, p: FloatArray, order: IntArray, start: int) -> None:
        self.p, self.order, self.next = p, order, start

    def __call__(self, count: int) -> tuple[IntArray, FloatArray]:
        rows = self.order[(self.next + np.arange(count)) % len(self.order)]
        self.next += count
        return rows, self.p[rows]


def rates_to_probabilities(successes: ArrayLike, rollouts: ArrayLike) -> FloatArray:
    """(N,) (k + 1/4) / (n + 1/2): the rate, kept a little away from 0 and 1."""
    return (np.asarray(successes, dtype=np.float64) + 0.25) / (np.asarray(rollouts, dtype=np.float64) + 0.5)
