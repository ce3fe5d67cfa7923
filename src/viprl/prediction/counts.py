"""Success counts of one step, checked and with repeated prompts added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from viprl._arrays import FloatArray, IntArray
from viprl.errors import InvalidInputError
from viprl.prediction.base import PromptId


class Counts(NamedTuple):
    """Outcomes of the prompts that have any: rows (B,) ascending and unique, successes (B,), rollouts (B,) > 0."""

    rows: IntArray
    successes: FloatArray
    rollouts: FloatArray

    @property
    def rates(self) -> FloatArray:
        return self.successes / self.rollouts


def check_counts(ids: Sequence[PromptId], successes: ArrayLike, rollouts: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """successes, rollouts as (B,) floats with 0 <= successes <= rollouts.

    Raises:
        InvalidInputError: wrong length, not finite, or out of bounds.
    """
    k = per_prompt("successes", successes, len(ids))
    n = per_prompt("rollouts", rollouts, len(ids))
    wrong = np.flatnonzero((k < 0) | (k > n))
    if len(wrong):
        i = int(wrong[0])
        raise InvalidInputError(
            "0 <= successes <= rollouts must hold, but got "
            f"(successes={k[i]:g}, rollouts={n[i]:g}) for prompt {ids[i]!r} ({len(wrong)} prompts in all)"
        )
    return k, n


def per_prompt(name: str, values: ArrayLike, length: int) -> FloatArray:
    """(B,) finite floats, one for each prompt of the batch."""
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (length,):
        raise InvalidInputError(f"`{name}` must have shape ({length},), one entry a prompt, but got {array.shape}")
    if not np.isfinite(array).all():
        raise InvalidInputError(
            f"`{name}` must be finite, but got {int((~np.isfinite(array)).sum())} values that are not"
        )
    return array


def merge_counts(rows: IntArray, successes: FloatArray, rollouts: FloatArray) -> Counts:
    """Add up repeated rows and drop those without rollouts; the order of the input does not matter."""
    unique, place = np.unique(rows, return_inverse=True)
    k = np.bincount(place, weights=successes, minlength=len(unique)).astype(np.float64)
    n = np.bincount(place, weights=rollouts, minlength=len(unique)).astype(np.float64)
    live = n > 0
    return Counts(unique[live], k[live], n[live])
