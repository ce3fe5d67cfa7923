"""The recorded visits of a run as columns, which every protocol starts from.

Notation: N prompts, V visits, T steps; a visit is one group of rollouts of one prompt in one step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from viprl._arrays import FloatArray, IntArray
from viprl.errors import InvalidInputError

RewardKind = Literal["binary", "named success", "real"]


@dataclass(frozen=True, eq=False)
class VisitLog:
    """Visits in the order of their steps; within a step each prompt occurs once.

    Attributes:
        prompt_ids: (N,) the prompts, in the order given or first met.
        step_numbers: (T,) recorded step numbers, ascending.
        offsets: (T + 1,) visits ``offsets[t]:offsets[t + 1]`` belong to step t.
        rows: (V,) position in ``prompt_ids``.
        successes: (V,) rollouts that succeeded (or sum of rewards in [0, 1]); NaN throughout where real rewards name no
            success.
        rollouts: (V,) rollouts behind it, at least 1.
        means, variances: (V,) mean and unbiased variance (NaN below two rollouts) of the rewards, where these are more
            than the successes; else None.
        repeats: visits dropped because their prompt already occurred in the same step.
        replaced: visits dropped because their step was run again later, after a crash.
    """

    prompt_ids: tuple[str, ...]
    step_numbers: IntArray
    offsets: IntArray
    rows: IntArray
    successes: FloatArray
    rollouts: IntArray
    repeats: int = 0
    replaced: int = 0
    means: FloatArray | None = None
    variances: FloatArray | None = None

    @classmethod
    def build(
        cls,
        steps: ArrayLike,
        prompt_ids: Sequence[str] | NDArray[np.object_],
        successes: ArrayLike,
        rollouts: ArrayLike,
        *,
        all_prompts: Sequence[str] | None = None,
        means: ArrayLike | None = None,
        variances: ArrayLike | None = None,
    ) -> VisitLog:
        """From V visits in the order in which they were written.

        Of two visits of one prompt in one step the first counts, unless other steps lie between them: the step was
        then run again, after a crash, and its last run counts.

        Args:
            steps: (V,) integers.
            prompt_ids: (V,) strings.
            successes: (V,) numbers in [0, rollouts]; all NaN is allowed with ``means`` and ``variances``.
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
        nameless = variances is not None and bool(np.isnan(k).all())
        if n.min() < 1 or not (nameless or ((k >= 0) & (k <= n)).all()):
            raise InvalidInputError("0 <= successes <= n_rollouts and n_rollouts >= 1 must hold for every visit")
        order = np.argsort(step, kind="stable")
        rows, names = _rows(np.asarray(prompt_ids, dtype=object)[order].tolist(), all_prompts)
        run = np.concatenate([[0], np.cumsum(np.diff(step) != 0)])[order]
        step, k, n = step[order], k[order], n[order]
        kept, replaced = _one_of_each(step, rows, run, len(names))
        repeats = int(len(kept) - kept.sum()) - replaced
        step, rows, k, n = step[kept], rows[kept], k[kept], n[kept]
        numbers, starts = np.unique(step, return_index=True)
        moments = [None if x is None else np.asarray(x, dtype=np.float64)[order][kept] for x in (means, variances)]
        return cls(names, numbers, np.append(starts, len(step)), rows, k, n, repeats, replaced, *moments)

    @property
    def rewards(self) -> RewardKind:
        """What the log holds: successes alone, or rewards with and without a success named."""
        if self.variances is None:
            return "binary"
        return "real" if np.isnan(self.successes).all() else "named success"

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def n_steps(self) -> int:
        """Number of recorded steps."""
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
            self.replaced,
            *(None if x is None else x[keep] for x in (self.means, self.variances)),
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
    counts = np.column_stack([log.successes, log.rollouts - log.successes])
    result: FloatArray = _others(log, counts, keep) + np.array(prior)
    return result


def hindsight_variance(log: VisitLog, *, weight: float = 0.75, keep: float = 0.8) -> FloatArray:
    """(V,) reward variance by each prompt's other visits, as ``hindsight``; the log's mean has ``weight`` degrees.

    The log must have ``variances``, and two rollouts of every visit.
    """
    degrees = log.rollouts - 1.0
    squares = degrees * np.asarray(log.variances)
    total, freedom = _others(log, np.column_stack([squares, degrees]), keep).T
    result: FloatArray = (total + weight * squares.sum() / degrees.sum()) / (freedom + weight)
    return result


def _others(log: VisitLog, sums: FloatArray, keep: float) -> FloatArray:
    """(V, 2) faded total of ``sums`` (V, 2) over the prompt's other visits, earlier and later."""
    seen = np.zeros((len(log), 2))
    slices = list(log.steps())
    for passes in (slices, slices[::-1]):
        memory = np.zeros((len(log.prompt_ids), 2))
        for step in passes:
            rows = log.rows[step]
            seen[step] += memory[rows]
            memory[rows] = keep * (memory[rows] + sums[step])
    return seen


def _rows(ids: Sequence[str], all_prompts: Sequence[str] | None) -> tuple[IntArray, tuple[str, ...]]:
    """(V,) rows of the ids in ``all_prompts``, or in the ids in order of appearance."""
    place = {name: row for row, name in enumerate(all_prompts or ())}
    if len(place) != len(all_prompts or ()):
        raise InvalidInputError(f"prompt ids must be unique, but {len(all_prompts or ()) - len(place)} are repeated")
    rows = np.array([place.setdefault(name, len(place)) for name in ids], dtype=np.int64)
    if all_prompts is None:
        return rows, tuple(place)
    unknown = list(place)[len(all_prompts) :]
    if unknown:
        raise InvalidInputError(
            f"the prompts file must have every prompt of the log, but {len(unknown)} are missing, the first of them "
            f"{unknown[0]!r}"
        )
    return rows, tuple(all_prompts)


def _one_of_each(steps: IntArray, rows: IntArray, run: IntArray, prompts: int) -> tuple[NDArray[np.bool_], int]:
    """(V,) True at the visit that counts of each prompt in each step, and how many belong to an earlier run of theirs.

    Args:
        steps: ascending.
        run: the stretch of the log, without another step in between, that a visit was written in.
    """
    _, dense = np.unique(steps, return_inverse=True)
    key = dense.reshape(-1) * prompts + rows
    order = np.lexsort((np.arange(len(key)), -run, key))
    first = np.append(True, np.diff(key[order]) != 0)
    newest = run[order][first][np.cumsum(first) - 1]
    mask = np.zeros(len(rows), bool)
    mask[order[first]] = True
    return mask, int((run[order] < newest).sum())
