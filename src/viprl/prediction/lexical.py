"""Hashed TF-IDF of words and word pairs, reduced by a truncated singular value decomposition."""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from viprl._arrays import FloatArray

BUCKETS = 8192
FIT_ROWS = 8192  # prompts that the decomposition is computed from, evenly spaced
POWER_ITERATIONS = 3
_TOKEN = re.compile(r"\\[a-zA-Z]+|[a-zA-Z]+|\d+|[^\sa-zA-Z\d]")


def token_counts(texts: Sequence[str], buckets: int = BUCKETS) -> sparse.csr_matrix:
    """(N, buckets) counts of lower-case words, numbers, commands, signs and of adjacent pairs, by CRC-32."""
    indices: list[int] = []
    starts = [0]
    known: dict[str, int] = {}
    for text in texts:
        tokens = _TOKEN.findall(text.lower())
        for token in (*tokens, *map(" ".join, itertools.pairwise(tokens))):
            bucket = known.get(token)
            if bucket is None:
                bucket = known[token] = zlib.crc32(token.encode("utf-8", "surrogatepass")) % buckets
            indices.append(bucket)
        starts.append(len(indices))
        if len(known) > 1_000_000:
            known.clear()
    matrix = sparse.csr_matrix(
        (np.ones(len(indices), np.float32), np.array(indices, np.int32), np.array(starts, np.int64)),
        shape=(len(texts), buckets),
    )
    matrix.sum_duplicates()
    return matrix


def inverse_document_frequency(counts: sparse.csr_matrix) -> NDArray[np.float32]:
    """(buckets,) log((1 + N) / (1 + df)) + 1, and 0 for buckets in fewer than two texts."""
    df = np.bincount(counts.indices, minlength=counts.shape[1])
    weight = np.log((1 + counts.shape[0]) / (1 + df)) + 1
    return np.where(df >= 2, weight, 0.0).astype(np.float32)


def weigh(counts: sparse.csr_matrix, idf: NDArray[np.float32]) -> sparse.csr_matrix:
    """Rows of (1 + log count) * idf with unit length."""
    result = counts.copy()
    result.data = (1 + np.log(result.data)) * idf[result.indices]
    lengths = np.sqrt(np.asarray(result.multiply(result).sum(axis=1)).ravel())
    result.data /= np.repeat(np.maximum(lengths, 1e-12), np.diff(result.indptr)).astype(np.float32)
    return result


def leading_directions(matrix: sparse.csr_matrix | FloatArray, rank: int) -> FloatArray:
    """(columns, <= rank) right singular vectors by subspace iteration (Halko, Martinsson, Tropp 2011, alg. 4.4).

    The start is a fixed random matrix and each direction's largest entry is positive, so the result is reproducible.
    """
    rank = min(rank, *matrix.shape)
    width = min(rank + 8, *matrix.shape)
    basis = np.random.default_rng(0).standard_normal((matrix.shape[1], width)).astype(np.float32)
    for _ in range(POWER_ITERATIONS):
        basis = np.asarray(matrix.T @ (matrix @ basis), np.float64)
        basis = linalg.qr(basis, mode="economic")[0].astype(np.float32)
    small = np.asarray(matrix @ basis, np.float64)
    _, vectors = linalg.eigh(small.T @ small)
    directions: FloatArray = basis.astype(np.float64) @ vectors[:, ::-1][:, :rank]
    signs = np.sign(directions[np.abs(directions).argmax(axis=0), np.arange(directions.shape[1])])
    return directions * np.where(signs == 0, 1.0, signs)
