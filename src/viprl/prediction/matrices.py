"""Matrices of embeddings: what is accepted, and arithmetic that keeps within the range of floating point."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from viprl._arrays import FloatArray
from viprl.errors import InvalidInputError


def check_embeddings(embeddings: ArrayLike, prompts: int) -> NDArray[Any]:
    """(N, D) numbers, kept in the dtype and memory map they came in.

    Raises:
        TypeError: not numbers, or a flat list: prompt ids given in the place of embeddings.
        InvalidInputError: not two-dimensional, or not one row a prompt.
    """
    try:
        array = embeddings if isinstance(embeddings, np.ndarray) else np.asarray(embeddings)
    except ValueError as error:
        raise InvalidInputError(f"`embeddings` must be (N, D), but its rows differ in length: {error}") from error
    if array.dtype.kind not in "fiu" or (array.ndim < 2 and not isinstance(embeddings, np.ndarray)):
        raise TypeError(
            "`embeddings` must be an (N, D) array of numbers, with the ids of its rows in prompt_ids=[...], "
            f"but got {type(embeddings).__name__} of {array.dtype.name}, shape {array.shape}"
        )
    if array.ndim != 2 or len(array) != prompts or not array.shape[1]:
        raise InvalidInputError(
            f"`embeddings` must be (N, D) with one row a prompt, but got shape {array.shape} for {prompts} prompt_ids"
        )
    return array


def magnitude(values: FloatArray) -> float:
    """1 where squares of the values are within range, else a power of two (exact to divide by) near the largest."""
    largest = float(np.abs(values).max(initial=0.0))
    return 1.0 if largest == 0 or 1e-12 <= largest <= 1e12 else math.ldexp(0.5, math.frexp(largest)[1])


def padded(matrix: FloatArray, width: int) -> FloatArray:
    """The matrix with columns of zeros up to ``width``: shapes must not depend on the number of prompts."""
    return np.pad(matrix, ((0, 0), (0, width - matrix.shape[1])))
