"""Per-prompt state: columns of numbers, one row a prompt, addressed by prompt_id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from viprl._arrays import BoolArray, IntArray
from viprl.errors import CheckpointError
from viprl.prediction.base import PromptId
from viprl.prediction.counts import Counts, check_counts, merge_counts
from viprl.prediction.ids import PromptIndex


class PromptTable:
    """Columns that start at zero for every prompt; with prompt_ids=None the table grows with the ids it meets.

    Zero is always the value of "nothing known", so that rows never touched cost no resident memory and a saved
    state holds visited rows alone. The column ``visits`` (int32) is always there; a prompt is cold while it is zero.

    Args:
        prompt_ids: the N known prompts, or None for an open world.
        columns: name -> (dtype, trailing shape).
    """

    def __init__(
        self, prompt_ids: Iterable[PromptId] | None, columns: Mapping[str, tuple[DTypeLike, tuple[int, ...]]]
    ) -> None:
        self.index = PromptIndex(prompt_ids)
        self._spec = {"visits": (np.dtype(np.int32), ())} | {k: (np.dtype(t), s) for k, (t, s) in columns.items()}
        size = len(self.index) if self.index.fixed else 64
        self._data: dict[str, NDArray[Any]] = {k: np.zeros((size, *s), t) for k, (t, s) in self._spec.items()}

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, column: str) -> NDArray[Any]:
        """The column's array; a growing table has spare rows at the end."""
        return self._data[column]

    def rows(self, ids: Sequence[PromptId]) -> IntArray:
        """(B,) rows; -1 for prompts that a growing table has not met."""
        return self.index.rows(ids)

    def take(self, column: str, rows: IntArray) -> NDArray[Any]:
        """(B, ...) values; zero for prompts not met."""
        values = self._data[column][np.maximum(rows, 0)]
        if len(rows) and rows.min() < 0:
            values[rows < 0] = 0
        return values

    def cold(self, rows: IntArray) -> BoolArray:
        return np.asarray(self.take("visits", rows) == 0)

    def receive(self, ids: Sequence[PromptId], successes: ArrayLike, rollouts: ArrayLike) -> Counts:
        """Check one step's counts and find (or make) their rows; visits are not counted here."""
        k, n = check_counts(ids, successes, rollouts)
        live = np.flatnonzero(n > 0)
        if len(live) < len(ids):  # a prompt without news must not even get a row
            self.index.rows(ids)
            ids, k, n = [ids[int(i)] for i in live], k[live], n[live]
        rows = self.index.add(ids)
        self.reserve(len(self.index))
        return merge_counts(rows, k, n)

    def reserve(self, size: int) -> None:
        have = len(self._data["visits"])
        if size > have:
            for name, array in self._data.items():
                larger = np.zeros((max(size, 2 * have), *array.shape[1:]), array.dtype)
                larger[:have] = array
                self._data[name] = larger

    def sick(self) -> IntArray:
        """Rows with a number that is not finite."""
        visited = np.flatnonzero(self._data["visits"])
        found = np.zeros(len(visited), bool)
        for array in self._data.values():
            values = array[visited]
            found |= ~np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
        return visited[found]

    def forget(self, rows: IntArray) -> None:
        """As if never visited."""
        for array in self._data.values():
            array[rows] = 0

    def state(self) -> dict[str, Any]:
        """All ids, the visited rows and their columns."""
        visited = np.flatnonzero(self._data["visits"])
        return {
            "prompt_ids": self.index.state(),
            "rows": visited,
            "columns": {name: array[visited] for name, array in self._data.items()},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore ``state()``.

        Raises:
            CheckpointError: the table is fixed and the state is of other ids or of the same in another order.
        """
        ids = list(state["prompt_ids"])
        if self.index.fixed and ids != list(self.index.ids):
            raise CheckpointError(
                "the state's prompt_ids must be the predictor's, in the same order, but got "
                f"{len(ids)} in the state and {len(self.index)} here; merge_state() keeps what both know"
            )
        self._check_columns(state)
        if not self.index.fixed:
            self.index = PromptIndex()
            self.index.add(ids)
        self._fill(np.asarray(state["rows"], np.int64), state)

    def merge(self, state: Mapping[str, Any]) -> dict[str, list[PromptId]]:
        """Keep what the state knows of this table's prompts; says which ids are new, gone and kept.

        A growing table takes over every id of the state.
        """
        self._check_columns(state)
        old = list(state["prompt_ids"])
        if not self.index.fixed:
            self.index.add(old)
        here, there = set(self.index.ids), set(old)
        rows = np.asarray(state["rows"], np.int64)
        keep = np.array([old[int(r)] in here for r in rows], bool)
        target = self.index.rows([old[int(r)] for r in rows[keep]])
        columns = {name: np.asarray(values)[keep] for name, values in state["columns"].items()}
        self._fill(target, {"columns": columns})
        return {
            "new": [i for i in self.index.ids if i not in there],
            "gone": [i for i in old if i not in here],
            "kept": [i for i in old if i in here],
        }

    def _check_columns(self, state: Mapping[str, Any]) -> None:
        found = set(state["columns"])
        if found != set(self._spec):
            raise CheckpointError(f"the state must have the columns {sorted(self._spec)}, but got {sorted(found)}")
        for name, (_, shape) in self._spec.items():
            if np.asarray(state["columns"][name]).shape[1:] != shape:
                raise CheckpointError(
                    f"column `{name}` must have the row shape {shape}, but got "
                    f"{np.asarray(state['columns'][name]).shape[1:]}"
                )

    def _fill(self, rows: IntArray, state: Mapping[str, Any]) -> None:
        size = len(self.index) if self.index.fixed else max(64, len(self.index))
        self._data = {k: np.zeros((size, *s), t) for k, (t, s) in self._spec.items()}
        for name, values in state["columns"].items():
            self._data[name][rows] = values
