"""The recorded visits of a run as columns, which every protocol starts from.

Notation: N prompts, V visits, T steps; a visit is one group of rollouts of one prompt in one step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from viprl._arrays import FloatArray, IntArray
from viprl.errors import InvalidInputError


@dataclass(frozen=True, eq=False)
class VisitLog:
    """Visits in the order of their steps; within a step each prompt occurs once.

    Attributes:
        prompt_ids: (N,) the prompts, in the order given or first met.
        step_numbers: (T,) recorded step numbers, ascending.
        offsets: (T + 1,) visits ``offsets[t]:offsets[t + 1]`` belong to step t.
        rows: (V,) position in ``prompt_ids``.
        successes: (V,) sum of rewards mapped to [0, 1].
        rollouts: (V,) rollouts behind it, at least 1.
        repeats: visits dropped because their prompt already occurred in the same step.
    """

    prompt_ids: tuple[str, ...]
    step_numbers: IntArray
    offsets: IntArray
    rows: IntArray
    successes: FloatArray
    rollouts: IntArray
    repeats: int = 0

    @classmethod
    def build(
        cls,
        steps: ArrayLike,
        prompt_ids: Sequence[str] | NDArray[np.object_],
        successes: ArrayLike,
        rollouts: ArrayLike,
        *,
        all_prompts: Sequence[str] | None = None,
    ) -> VisitLog:
        """From V visits in any order.

        Args:
            steps: (V,) integers.
            prompt_ids: (V,) strings.
            successes: (V,) numbers in [0, rollouts].
            rollouts: (V,) integers, at least 1.
            all_prompts: (N,) ids that fix the order of prompts (rows of an embeddings file); else order of first visit.

        Raises:
            InvalidInputError: no visits, lengths that differ, counts out of range, an id outside ``all_prompts``.
        """
        step = np.asarray(steps, dtype=np.int64)
        k, n = np.asarray(successes, dtype=np.float64), np.asarray(rollouts, dtype=np.int64)
        if not len(step):
            raise InvalidInputError("a log must have at least one visit, but got none")
        if not len(step) == len(prompt_ids) == len(k) == len(n):
            raise InvalidInputError(
                f"all columns must have the same length, but got {len(step)}, {len(prompt_ids)}, {len(k)}, {len(n)}"
            )
        if n.min() < 1 or not ((k >= 0) & (k <= n)).all():
            raise InvalidInputError("0 <= successes <= n_rollouts and n_rollouts >= 1 must hold for every visit")
        order = np.argsort(step, kind="stable")
        rows, names = _rows(np.asarray(prompt_ids, dtype=object)[order], all_prompts)
        step, k, n = step[order], k[order], n[order]
        first = _first_of_each(step, rows, len(names))
        repeats = int(len(first) - first.sum())
        step, rows, k, n = step[first], rows[first], k[first], n[first]
        numbers, starts = np.unique(step, return_index=True)
        return cls(names, numbers, np.append(starts, len(step)), rows, k, n, repeats)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def n_steps(self) -> int:
        return len(self.step_numbers)

    @property
    def mean_group_size(self) -> float:
        """Mean rollouts of a visit."""
        return float(self.rollouts.mean())

    def steps(self) -> Iterator[slice]:
        """The slice of visits of each step, in order."""
        for start, stop in zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True):
            yield slice(start, stop)

    def subset(self, keep: NDArray[np.bool_]) -> VisitLog:
        """The log with only the visits where ``keep`` (V,) is True; the prompts stay known."""
        step = np.repeat(self.step_numbers, np.diff(self.offsets))[keep]
        if not len(step):
            raise InvalidInputError("a log must have at least one visit, but none is left")
        numbers, starts = np.unique(step, return_index=True)
        return VisitLog(
            self.prompt_ids,
            numbers,
            np.append(starts, len(step)),
            self.rows[keep],
            self.successes[keep],
            self.rollouts[keep],
            self.repeats,
        )

    def pooled(self) -> tuple[FloatArray, IntArray]:
        """(N,) successes and rollouts of each prompt over all its visits."""
        k: FloatArray = np.bincount(self.rows, self.successes, minlength=len(self.prompt_ids)).astype(np.float64)
        n = np.bincount(self.rows, self.rollouts, minlength=len(self.prompt_ids))
        return k, n.astype(np.int64)


def hindsight(log: VisitLog, *, prior: tuple[float, float] = (0.3, 0.45), keep: float = 0.8) -> FloatArray:
    """(V, 2) Beta parameters from each prompt's *other* visits, earlier and later, fading by ``keep`` a visit.

    It sees the future, so no rule can use it, but not the visit itself, so scoring by that visit stays unbiased.
    """
    seen = np.zeros((len(log), 2))
    counts = np.column_stack([log.successes, log.rollouts - log.successes])
    slices = list(log.steps())
    for passes in (slices, slices[::-1]):
        memory = np.zeros((len(log.prompt_ids), 2))
        for step in passes:
            rows = log.rows[step]
            seen[step] += memory[rows]
            memory[rows] = keep * (memory[rows] + counts[step])
    result: FloatArray = seen + np.array(prior)
    return result


def _rows(ids: NDArray[np.object_], all_prompts: Sequence[str] | None) -> tuple[IntArray, tuple[str, ...]]:
    import pandas as pd

    codes, uniques = pd.factorize(ids)
    if all_prompts is None:
        return codes.astype(np.int64), tuple(str(name) for name in uniques)
    position = {name: row for row, name in enumerate(all_prompts)}
    if len(position) != len(all_prompts):
        raise InvalidInputError(f"prompt ids must be unique, but {len(all_prompts) - len(position)} are repeated")
    known = np.array([position.get(str(name), -1) for name in uniques], dtype=np.int64)
    if known.min() < 0:
        unknown = [str(name) for name, row in zip(uniques, known, strict=True) if row < 0]
        raise InvalidInputError(
            f"the prompts file must have every prompt of the log, but {len(unknown)} are missing, the first of them "
            f"{unknown[0]!r}"
        )
    return known[codes], tuple(all_prompts)


def _first_of_each(steps: IntArray, rows: IntArray, prompts: int) -> NDArray[np.bool_]:
    """(V,) True at the first visit of each prompt in each step; steps ascending."""
    _, dense = np.unique(steps, return_inverse=True)
    _, first = np.unique(dense.reshape(-1) * prompts + rows, return_index=True)
    mask = np.zeros(len(rows), bool)
    mask[first] = True
    return mask
