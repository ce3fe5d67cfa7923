"""Hashed character n-grams: vectors without any model, for machines that have none. Chosen explicitly, never silently.

They know spelling, not meaning: prompts of one template or topic come close, paraphrases do not.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from viprl.errors import InvalidInputError

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_VERSION = 1


class HashedNgrams:
    """Signed feature hashing of the UTF-8 n-grams of the lower-cased text, 1 + log counts, unit length.

    Args:
        dimension: D, number of buckets.
        lengths: n-gram lengths in bytes.

    >>> HashedNgrams(dimension=8).encode(["abc"]).shape
    (1, 8)
    """

    window: int | None = None

    def __init__(self, *, dimension: int = 512, lengths: Sequence[int] = (3, 4, 5)) -> None:
        if dimension < 1:
            raise InvalidInputError(f"dimension >= 1 must hold, but got {dimension}")
        if not lengths or min(lengths) < 1:
            raise InvalidInputError(f"lengths must be positive, but got {tuple(lengths)}")
        self.dimension = dimension
        self.lengths = tuple(int(n) for n in lengths)

    @property
    def name(self) -> str:
        """Name in reports."""
        return "hashed-ngrams"

    def fingerprint(self) -> str:
        """Settings and version: vectors of equal fingerprints may be mixed."""
        return f"hashed-ngrams-v{_VERSION}-d{self.dimension}-n{'.'.join(map(str, self.lengths))}"

    def count_tokens(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """(N,) lengths in bytes; nothing is ever cut off."""
        return np.array([len(text.encode("utf-8", "surrogatepass")) for text in texts], dtype=np.int64)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, D); the zero vector for a text without any n-gram."""
        rows = [self._vector(text) for text in texts]
        return np.stack(rows).astype(np.float32) if rows else np.zeros((0, self.dimension), np.float32)

    def _vector(self, text: str) -> NDArray[np.float64]:
        words = " ".join(unicodedata.normalize("NFKC", text).lower().split())
        data = np.frombuffer(f" {words} ".encode("utf-8", "surrogatepass"), dtype=np.uint8).astype(np.uint64)
        features = [_hashes(data, length) for length in self.lengths if words and len(data) >= length]
        if not features:
            return np.zeros(self.dimension)
        distinct, counts = np.unique(np.concatenate(features), return_counts=True)
        sign = np.where(distinct >> np.uint64(63), 1.0, -1.0)
        bucket = ((distinct >> np.uint64(8)) % np.uint64(self.dimension)).astype(np.int64)
        weights = sign * (1.0 + np.log(counts))
        vector: NDArray[np.float64] = np.bincount(bucket, weights=weights, minlength=self.dimension).astype(np.float64)
        length = float(np.linalg.norm(vector))
        return vector / length if length > 0 else vector


def _hashes(data: NDArray[np.uint64], length: int) -> NDArray[np.uint64]:
    """Mixed 64-bit hashes of all windows of ``length`` bytes."""
    windows = len(data) - length + 1
    value = np.full(windows, length, dtype=np.uint64)
    for offset in range(length):
        value = (value ^ data[offset : offset + windows]) * _MULTIPLIER
        value ^= value >> np.uint64(29)
    return value
