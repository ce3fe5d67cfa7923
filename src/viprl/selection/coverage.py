"""How training has covered the prompts so far: who waits how long, and whether selection has narrowed to a few.

Time is counted in passes: a step that keeps m of the N prompts met so far takes m/N of a pass, whatever the group
sizes. Notation: N prompts met, K candidates, m kept ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from viprl._arrays import FloatArray, IntArray
from viprl.errors import InvalidInputError

PromptId = str | int


class Coverage:
    """Learns from every step's candidates; all of it is state.

    The effective number of prompts is (sum c)^2 / sum c^2 of the prompts' visits c, older passes counting less by a
    factor e a pass: as many equally visited prompts would look the same. ``narrow`` says that it has fallen below
    ``least_steps`` steps' worth of prompts, or an eighth of all, whichever is less; not before the first pass is over.

    Args:
        least_steps: see above; 0 never finds training narrow.
    """

    def __init__(self, *, least_steps: float = 4.0) -> None:
        if not least_steps >= 0:
            raise InvalidInputError(f"least_steps >= 0 must hold, but got {least_steps}")
        self.least_steps = least_steps
        self.clock = 0.0
        self._row: dict[PromptId, int] = {}
        self._since = np.zeros(64)  # passes: last time kept or, before that, first time met
        self._visits = np.zeros(64)  # discounted
        self._kept = 0.0  # prompts of a step, averaged over the last pass

    def __len__(self) -> int:
        return len(self._row)

    def waited(self, ids: Sequence[PromptId]) -> FloatArray:
        """(K,) passes since each prompt was last kept or, if it never was, first met; 0 for new ones."""
        rows = np.array([self._row.get(i, -1) for i in ids], dtype=np.int64)
        return np.where(rows >= 0, self.clock - self._since[np.maximum(rows, 0)], 0.0)

    def effective(self) -> float:
        """Effective number of prompts of the last passes; 0 before the first step."""
        visits = self._visits[: len(self)]
        square = float(np.square(visits).sum())
        return float(visits.sum()) ** 2 / square if square > 0 else 0.0

    def visited_share(self) -> float:
        """Share of the prompts met that were kept within the last pass."""
        if not len(self):
            return 0.0
        return float(np.mean((self._visits[: len(self)] > 0) & (self.clock - self._since[: len(self)] <= 1.0)))

    @property
    def narrow(self) -> bool:
        """Whether selection should pause for the sake of breadth."""
        return self.clock >= 1.0 and self.effective() < min(self.least_steps * self._kept, len(self) / 8)

    def learn(self, ids: Sequence[PromptId], kept: Sequence[bool]) -> None:
        """Take in one step: its K candidates, and which of them were kept."""
        if len(ids) != len(kept):
            raise InvalidInputError(f"one flag a candidate is needed, but got {len(kept)} for {len(ids)}")
        rows = self._rows(ids)
        chosen = rows[np.asarray(kept, bool)]
        share = len(chosen) / max(len(self), 1)
        self._visits[: len(self)] *= np.exp(-share)
        self.clock += share
        np.add.at(self._visits, chosen, 1.0)
        self._since[chosen] = self.clock
        self._kept += (len(chosen) - self._kept) * (min(max(share, 0.05), 1.0) if self._kept else 1.0)

    def _rows(self, ids: Sequence[PromptId]) -> IntArray:
        for i in ids:
            if i not in self._row:
                row = self._row[i] = len(self._row)
                if row == len(self._since):
                    self._since = np.concatenate([self._since, np.zeros(row)])
                    self._visits = np.concatenate([self._visits, np.zeros(row)])
                self._since[row] = self.clock
        return np.array([self._row[i] for i in ids], dtype=np.int64)

    def state_dict(self) -> dict[str, Any]:
        """Everything the next step needs."""
        return {
            "clock": self.clock,
            "kept": self._kept,
            "ids": list(self._row),
            "since": self._since[: len(self)].copy(),
            "visits": self._visits[: len(self)].copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict()``."""
        size = max(64, len(state["ids"]))
        self.clock, self._kept = float(state["clock"]), float(state["kept"])
        self._row = {i: row for row, i in enumerate(state["ids"])}
        self._since, self._visits = np.zeros(size), np.zeros(size)
        self._since[: len(self)], self._visits[: len(self)] = state["since"], state["visits"]
