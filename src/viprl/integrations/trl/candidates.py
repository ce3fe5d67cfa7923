"""Candidates beyond TRL's own batch, and what was decided among them.

A generation batch of TRL's brings B prompts; the data set brings the other candidates, in an order of our own. (A
sampler would have to choose one batch too early, since accelerate fetches ahead.) A stream has no rows to look up: it
brings all candidates itself, see ``AdaptiveRolloutMixin.get_train_dataloader``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from viprl._arrays import FloatArray, IntArray
from viprl.errors import CheckpointError
from viprl.plan import Plan

logger = logging.getLogger("viprl")

SETTINGS = ("candidates", "selection", "exploration", "max_rest")


class Cursor(NamedTuple):
    """Where the next offer begins: in which pass over the data set, and how many of its rows are behind."""

    turn: int
    position: int


class Pool:
    """A data set's rows, offered pass by pass: every pass is a random order in which no row comes twice.

    Args:
        row_ids: (R,) prompt ids of the rows.
        seed: of the orders.
    """

    def __init__(self, row_ids: Sequence[str], seed: int) -> None:
        self.row_ids = row_ids
        self.cursor = Cursor(0, 0)
        self._seed = seed
        self._order = (-1, np.zeros(0, dtype=np.int64))

    def offer(self, batch_ids: Sequence[str], count: int) -> tuple[list[int], Cursor]:
        """The next rows, and where the cursor stands after them. Pure.

        A row whose prompt is among the candidates already is passed over: that prompt has its offer. So the data set
        may be smaller than what is asked for; all of it is then offered, once.

        Args:
            batch_ids: the prompts that are offered anyway.
            count: rows wanted.

        Returns:
            (at most ``count`` rows with different prompts, the cursor).
        """
        known = set(batch_ids)
        rows: list[int] = []
        turn, position = self.cursor
        for _ in range(len(self.row_ids)):
            if len(rows) == count:
                break
            if position == len(self.row_ids):
                turn, position = turn + 1, 0
            row = int(self._order_of(turn)[position])
            position += 1
            if self.row_ids[row] not in known:
                known.add(self.row_ids[row])
                rows.append(row)
        return rows, Cursor(turn, position)

    def state_dict(self) -> dict[str, int]:
        """The cursor, and of how many rows."""
        return {"rows": len(self.row_ids), **self.cursor._asdict()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from ``state_dict()``; with a data set of another length, from the start of the next pass."""
        self.cursor = Cursor(int(state["turn"]), int(state["position"]))
        if int(state["rows"]) != len(self.row_ids):
            rows = (int(state["rows"]), len(self.row_ids))
            logger.warning("the data set had %d rows and has %d: candidates begin a new pass", *rows)
            self.cursor = Cursor(self.cursor.turn + 1, 0)

    def _order_of(self, turn: int) -> IntArray:
        if self._order[0] != turn:
            self._order = (turn, np.random.default_rng([self._seed, turn]).permutation(len(self.row_ids)))
        return self._order[1]


@dataclass(frozen=True)
class Decision:
    """Who gets rollouts in a generation batch; what every process must know.

    Attributes:
        prompt_ids: of the m prompts that got rollouts.
        sizes: (m,) rollouts.
        weights: (m,) what the selection multiplies a prompt's advantages by.
        places: (m,) position in TRL's batch; from B on, B plus the row of the data set.
        kept_for: (m,) why, as the history says it; None where nothing was selected.
    """

    prompt_ids: tuple[str, ...]
    sizes: IntArray
    weights: FloatArray
    places: IntArray
    kept_for: list[str] | None

    @classmethod
    def of(cls, plan: Plan, batch: int, rows: Sequence[int]) -> Decision:
        """From the plan of ``batch`` prompts and, after them, of the data set's ``rows``."""
        places = np.concatenate([np.arange(batch), batch + np.asarray(rows, dtype=np.int64)])
        return cls(
            tuple(str(i) for i in plan.prompt_ids),
            np.array(plan.group_sizes, dtype=np.int64),
            np.array(plan.prompt_weights),
            places[plan.kept],
            None if plan.selected is None else plan.selected.kept_for,
        )


def same_selection(saved: Mapping[str, Any] | None, args: Any) -> None:
    """Whether a run goes on as it was begun.

    Args:
        saved: what a checkpoint says, with ``SETTINGS``; None for one from before there were candidates.

    Raises:
        CheckpointError: candidates were chosen in another way.
    """
    before = saved or {"candidates": 1}
    now = {name: getattr(args, name) for name in SETTINGS}
    if before["candidates"] == now["candidates"] == 1:
        return
    differ = [f"{name}: {before.get(name)!r} -> {now[name]!r}" for name in SETTINGS if before.get(name) != now[name]]
    if differ:
        raise CheckpointError(f"a resumed run must choose prompts as it did before, but {', '.join(differ)}")
