"""What is known of a prompt before its first rollout, as a short vector: embedding, text, side information.

N known prompts, D embedding size, B prompts in the batch, F features. Every block is scaled so that its rows have
a mean squared length near a fixed value; the regression's prior precision of a block then means the same thing for
every data set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from viprl._arrays import FloatArray, IntArray
from viprl.errors import CheckpointError, InvalidInputError
from viprl.prediction.lexical import (
    FIT_ROWS,
    inverse_document_frequency,
    leading_directions,
    token_counts,
    weigh,
)
from viprl.prediction.matrices import check_embeddings, magnitude, padded
from viprl.prediction.side import SideColumns
from viprl.prediction.surface import surface_features

EMBEDDING_RANK = 128
LEXICAL_RANK = 96
FIT_EMBEDDINGS = 8192
CHUNK = 50_000
FAR = 32.0  # no feature is further from the mean, in units of the block's root mean squared length
# A mean squared deviation below these shares of the mean square is rounding, not information: in single precision,
# and where directions are kept in half precision.
ROUNDING, ROUNDING_HALF = 1e-12, 1e-8
VANISHING = 1e-280  # smaller embeddings are zero: their inverse leaves the range of floating point


class EmbeddingBlock:
    """Principal components of the embeddings, computed for the batch's rows alone; (B, min(128, D)).

    In single precision, except for embeddings so large or small that they would leave its range.
    """

    name = "embedding"

    def __init__(self, embeddings: NDArray[Any]) -> None:
        self._embeddings = embeddings
        sample = embeddings[_evenly(len(embeddings), FIT_EMBEDDINGS)].astype(np.float64)
        if not np.isfinite(sample).all():
            raise InvalidInputError(
                f"`embeddings` must be finite, but {int((~np.isfinite(sample)).sum())} values are not"
            )
        sample[np.abs(sample) < VANISHING] = 0.0
        unit = magnitude(sample)
        sample /= unit
        centre = sample.mean(axis=0)
        scale = _unit_scale(sample - centre, sample, ROUNDING)
        directions = padded(leading_directions(sample - centre, EMBEDDING_RANK), min(EMBEDDING_RANK, len(centre)))
        kind = np.float32 if unit == 1 else np.float64
        self.maps = {"centre": (centre * unit).astype(kind), "directions": (directions * (scale / unit)).astype(kind)}

    @property
    def width(self) -> int:
        return int(self.maps["directions"].shape[1])

    def rows(self, rows: IntArray) -> NDArray[Any]:
        given, centre, directions = self._embeddings[rows], self.maps["centre"], self.maps["directions"]
        with np.errstate(over="ignore", invalid="ignore"):
            x = given.astype(centre.dtype) - centre
            result: NDArray[Any] = x @ directions
            if not np.isfinite(result).all():
                if not (sound := np.isfinite(given).all(axis=1)).all():
                    raise InvalidInputError(f"`embeddings` must be finite, but row {int(rows[~sound][0])} is not")
                largest = np.sqrt(np.finfo(centre.dtype).max)
                result = np.nan_to_num(np.clip(x, -largest, largest) @ directions)
        clipped: NDArray[Any] = np.clip(result, -FAR, FAR)
        return clipped


class LexicalBlock:
    """Reduced hashed TF-IDF, computed once; kept as (N, 96) half-precision floats."""

    name = "lexical"
    width = LEXICAL_RANK

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        counts = token_counts(texts if len(texts) <= CHUNK else [texts[int(i)] for i in _evenly(len(texts), CHUNK)])
        idf = inverse_document_frequency(counts)
        weighted = weigh(counts, idf)
        fit = weighted[_evenly(len(weighted.indptr) - 1, FIT_ROWS)]
        directions = padded(leading_directions(fit, LEXICAL_RANK), LEXICAL_RANK)
        reduced = weighted @ directions
        centre = reduced.mean(axis=0)
        scale = _unit_scale(reduced - centre, reduced, ROUNDING_HALF)
        self.maps: dict[str, NDArray[Any]] = {
            "idf": idf,
            "directions": (directions * scale).astype(np.float16),
            "centre": (centre * scale).astype(np.float32),
        }
        if len(texts) <= CHUNK:
            self._values = np.clip(reduced * scale - self.maps["centre"], -FAR, FAR).astype(np.float16)
        else:
            self.build()

    def build(self) -> None:
        self._values = np.empty((len(self._texts), self.width), np.float16)
        directions = self.maps["directions"].astype(np.float32)
        for start in range(0, len(self._texts), CHUNK):
            part = weigh(token_counts(self._texts[start : start + CHUNK]), self.maps["idf"])
            self._values[start : start + CHUNK] = np.clip(part @ directions - self.maps["centre"], -FAR, FAR)

    def rows(self, rows: IntArray) -> NDArray[np.float32]:
        return np.asarray(self._values[rows], np.float32)


class SurfaceBlock:
    """Standardised counts of the text's characters, numbers and formulae, cut at three deviations."""

    name = "surface"
    squared_length = 4.0

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        sample = surface_features([texts[int(i)] for i in _evenly(len(texts), CHUNK)])
        self.maps = {"centre": sample.mean(axis=0), "deviation": sample.std(axis=0)}
        self.build()

    @property
    def width(self) -> int:
        return len(self.maps["centre"])

    def build(self) -> None:
        centre, deviation = self.maps["centre"], self.maps["deviation"]
        varies = np.square(deviation) > ROUNDING * np.square(centre)
        scale = np.where(varies, np.sqrt(self.squared_length / self.width) / np.maximum(deviation, 1e-12), 0.0)
        limit = 3 * np.sqrt(self.squared_length / self.width)
        self._values = np.empty((len(self._texts), self.width), np.float16)
        for start in range(0, len(self._texts), CHUNK):
            raw = surface_features(self._texts[start : start + CHUNK])
            self._values[start : start + CHUNK] = np.clip((raw - centre) * scale, -limit, limit)

    def rows(self, rows: IntArray) -> NDArray[np.float32]:
        return np.asarray(self._values[rows], np.float32)


class PromptFeatures:
    """All blocks side by side, behind a constant 1; ``groups`` are their column ranges."""

    def __init__(
        self,
        prompts: int,
        embeddings: ArrayLike | None,
        texts: Sequence[str] | None,
        side_information: Mapping[str, ArrayLike] | ArrayLike | None,
    ) -> None:
        matrix = None if embeddings is None else check_embeddings(embeddings, prompts)
        if texts is not None:
            _check_texts(texts, prompts)
        side = {} if side_information is None else _side_columns(side_information, prompts)
        self._blocks: list[Any] = []
        if prompts:  # else there is nothing to learn maps from
            self._blocks += [] if matrix is None else [EmbeddingBlock(matrix)]
            self._blocks += [] if texts is None else [SurfaceBlock(texts), LexicalBlock(texts)]
            self._blocks += [SideColumns(name, values) for name, values in side.items()]
        self.groups: dict[str, slice] = {}
        at = 1
        for block in self._blocks:
            self.groups[block.name] = slice(at, at + block.width)
            at += block.width
        self.width = at

    def rows(self, rows: IntArray) -> FloatArray:
        """(B, F) features; the first column is 1. Rows of -1 (unknown prompts) give the average prompt, zeros."""
        result = np.zeros((len(rows), self.width))
        result[:, 0] = 1.0
        known = rows >= 0
        for block, columns in zip(self._blocks, self.groups.values(), strict=True):
            values = block.rows(rows[known])
            if not np.isfinite(values).all():
                raise InvalidInputError(f"the features `{block.name}` must be finite, but some are not")
            result[known, columns] = values
        return result

    def state(self) -> dict[str, Any]:
        """The learned maps (components, idf, means): weights learned on them are meaningless without them."""
        return {block.name: {k: np.copy(v) for k, v in block.maps.items()} for block in self._blocks}

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise CheckpointError where a saved state's maps are not of these blocks and shapes."""
        if list(state) != [block.name for block in self._blocks]:
            raise CheckpointError(
                f"the state's features must be the predictor's, but got {list(state)}, "
                f"{[block.name for block in self._blocks]}"
            )
        for block in self._blocks:
            for name, value in block.maps.items():
                found = np.asarray(state[block.name][name]) if name in state[block.name] else np.zeros(0)
                if found.shape != value.shape:
                    raise CheckpointError(f"{block.name}.{name} must have shape {value.shape}, but got {found.shape}")
                if not np.isfinite(found).all():
                    raise CheckpointError(f"{block.name}.{name} of the state must be finite, but it is not")

    def load(self, state: Mapping[str, Any]) -> None:
        """Use the maps of a saved state on this predictor's prompts."""
        self.check(state)
        for block in self._blocks:
            new = {k: np.asarray(state[block.name][k], v.dtype) for k, v in block.maps.items()}
            same = all(np.array_equal(new[k], v) for k, v in block.maps.items())
            block.maps = {k: v.copy() for k, v in new.items()}
            if not same and hasattr(block, "build"):
                block.build()


def _side_columns(side: Mapping[str, ArrayLike] | ArrayLike, prompts: int) -> dict[str, FloatArray]:
    if isinstance(side, Mapping):
        columns = {f"side:{name}": np.asarray(values, np.float64) for name, values in side.items()}
    else:
        table = np.asarray(side, np.float64)
        if table.ndim != 2:
            raise InvalidInputError(f"`side_information` must be a mapping or (N, S), but got shape {table.shape}")
        columns = {f"side:{i}": table[:, i] for i in range(table.shape[1])}
    for name, values in columns.items():
        if values.shape != (prompts,):
            raise InvalidInputError(
                f"{name} must have one entry a prompt (NaN where missing), but got {values.shape} for {prompts}"
            )
        if np.isinf(values).any():
            raise InvalidInputError(f"{name} must be finite or NaN, but got {int(np.isinf(values).sum())} infinities")
    return columns


def _check_texts(texts: Sequence[str], prompts: int) -> None:
    if isinstance(texts, str):
        raise TypeError("`texts` must be a sequence of strings, one a prompt, but got one string")
    if len(texts) != prompts:
        raise InvalidInputError(f"`texts` must have one entry a prompt, but got {len(texts)} for {prompts} prompt_ids")
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"`texts` must be strings, but entry {row} is of type {type(text).__name__}")


def _evenly(size: int, most: int) -> IntArray:
    if size <= most:
        return np.arange(size)
    return np.linspace(0, size - 1, most).astype(np.int64)


def _unit_scale(spread: FloatArray, rows: FloatArray, rounding: float) -> float:
    """Factor that makes the mean squared length of the centred rows one; 0 where they are equal up to rounding."""
    mean, whole = (float((x * x).sum(axis=1).mean()) for x in (spread, rows))
    return 1.0 / np.sqrt(mean) if mean > rounding * whole else 0.0
