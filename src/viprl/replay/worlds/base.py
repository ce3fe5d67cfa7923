"""What a protocol offers to the rules, and what it keeps back for scoring.

Notation: B prompts in the step, n_q rollouts of prompt q, a_q = p_q (1 - p_q).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from viprl._arrays import BoolArray, FloatArray, IntArray
from viprl.replay.log import RewardKind


class Step(ABC):
    """One step. Rules may use ``rows``, ``budget``, ``draw``, ``group_is_live`` and ``extend``; the rest is scoring.

    Attributes:
        number: the recorded (or simulated) step number.
        phase: the part of the run that the step is reported under.
        rows: (B,) the prompts' positions in the world's ``prompt_ids``.
        budget: rollouts of the step, C.
        drawn, hits: (B,) rollouts taken inside the step so far, and their successes.
    """

    def __init__(self, number: int, phase: str, rows: IntArray, budget: int) -> None:
        self.number, self.phase, self.rows, self.budget = number, phase, rows, budget
        self.drawn = np.zeros(len(rows), dtype=np.int64)
        self.hits = np.zeros(len(rows))

    def __len__(self) -> int:
        return len(self.rows)

    @abstractmethod
    def draw(self, positions: IntArray, count: int) -> None:
        """Take ``count`` rollouts of the prompts at ``positions`` now; ``drawn`` and ``hits`` grow.

        A recorded log holds a limited number of rollouts: fewer are then drawn, down to none.
        """

    @abstractmethod
    def group_is_live(self, positions: IntArray, size: int) -> BoolArray:
        """Whether whole groups of ``size`` rollouts of these prompts have both outcomes (drawn now)."""

    @abstractmethod
    def extend(self, count: int) -> IntArray:
        """Add up to ``count`` further prompts to the step; returns their positions."""

    @abstractmethod
    def learn(self, sizes: IntArray) -> tuple[FloatArray, IntArray]:
        """(B,) successes and rollouts that the trainer would show the predictor after groups of these sizes."""

    def learn_rewards(self, sizes: IntArray) -> tuple[FloatArray, FloatArray, IntArray]:
        """(B,) mean, variance and number of the rewards, in worlds whose rewards are more than successes."""
        raise NotImplementedError

    # -- scoring ------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def weight(self) -> FloatArray:
        """(B,) a_q, exact or an unbiased estimate that is independent of what the rules were shown."""

    @property
    @abstractmethod
    def target(self) -> FloatArray:
        """(B,) success probability (or observed rate) that predictions are scored against."""

    @property
    @abstractmethod
    def best_weight(self) -> FloatArray:
        """(B,) what the best allocation goes by: a_q itself, or the hindsight estimate of it."""

    @property
    @abstractmethod
    def bin_rate(self) -> FloatArray:
        """(B,) success rate by which "who got the rollouts" is drawn."""

    @abstractmethod
    def live(self, sizes: FloatArray) -> FloatArray:
        """(B,) probability that a group of each size has both outcomes."""


class World(Protocol):
    """A protocol: something that yields the same steps to every rule for the same seed."""

    prompt_ids: tuple[str, ...]
    n_steps: int
    best_name: str  # "oracle" or "hindsight"
    rewards: RewardKind

    def run(self, seed: int) -> Iterator[Step]:
        """The steps in order. The caller must call ``learn`` on each before it asks for the next."""
        ...

    def describe(self) -> dict[str, object]:
        """Facts for the report: protocol, prompts, steps, budget."""
        ...
