"""Stable prompt ids to rows of the state arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viprl.errors import InvalidInputError, UnknownPromptError
from viprl.prediction.base import PromptId


class PromptIndex:
    """Maps prompt_id -> row. Fixed when built with ids (unknown ids are errors), growing when built without."""

    def __init__(self, prompt_ids: Iterable[PromptId] | None = None) -> None:
        self.fixed = prompt_ids is not None
        self._ids: list[PromptId] = list(prompt_ids) if prompt_ids is not None else []
        self._row: dict[PromptId, int] = {prompt_id: row for row, prompt_id in enumerate(self._ids)}
        if len(self._row) != len(self._ids):
            seen: set[PromptId] = set()
            repeated = next(i for i in self._ids if i in seen or seen.add(i))  # type: ignore[func-returns-value]
            raise InvalidInputError(
                f"prompt_ids must be unique, but {len(self._ids) - len(self._row)} are repeated (first: {repeated!r})"
            )

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> Sequence[PromptId]:
        return self._ids

    def rows(self, ids: Sequence[PromptId]) -> NDArray[np.int64]:
        """(B,) rows; -1 for ids that a growing index has not met.

        Raises:
            UnknownPromptError: a fixed index does not know an id.
        """
        rows = np.fromiter(map(self._row.get, ids, itertools.repeat(-1)), dtype=np.int64, count=len(ids))
        if self.fixed and len(rows) and rows.min() < 0:
            unknown = [ids[int(i)] for i in np.flatnonzero(rows < 0)]
            raise UnknownPromptError(
                "every prompt_id must be one of the predictor's prompt_ids, but "
                f"{len(unknown)} of {len(ids)} are unknown (first: {unknown[0]!r})"
            )
        return rows

    def add(self, ids: Sequence[PromptId]) -> NDArray[np.int64]:
        """Rows of ids, giving new rows to unknown ones in a growing index."""
        if not self.fixed:
            for prompt_id in ids:
                if prompt_id not in self._row:
                    self._row[prompt_id] = len(self._ids)
                    self._ids.append(prompt_id)
        return self.rows(ids)

    def state(self) -> list[Any]:
        return list(self._ids)
