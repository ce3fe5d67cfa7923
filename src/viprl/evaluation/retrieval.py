"""Retrieved passages against the relevant ones: precision, recall and F1 of the first k.

These are the second reading of the "F1@5" and "Precision@5" of search papers; the first, token F1 and precision of
the answer with five passages retrieved, is in ``answers.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

from viprl.errors import InvalidInputError


def retrieval_precision_at_k(retrieved: Sequence[Hashable], relevant: Collection[Hashable], k: int) -> float:
    """Relevant passages among the first k, over k. A list shorter than k is judged as if the rest were irrelevant.

    A passage retrieved twice counts once.

    >>> retrieval_precision_at_k(["a", "b", "c"], {"a", "c", "z"}, 2)
    0.5
    """
    return len(_hits(retrieved, relevant, k)) / k


def retrieval_recall_at_k(retrieved: Sequence[Hashable], relevant: Collection[Hashable], k: int) -> float:
    """Relevant passages among the first k, over all relevant ones; an error where nothing is relevant."""
    return len(_hits(retrieved, relevant, k)) / len(set(relevant))


def retrieval_f1_at_k(retrieved: Sequence[Hashable], relevant: Collection[Hashable], k: int) -> float:
    """Harmonic mean of precision and recall at k; 0 where both are 0."""
    hits = len(_hits(retrieved, relevant, k))
    return 2 * hits / (k + len(set(relevant)))


def _hits(retrieved: Sequence[Hashable], relevant: Collection[Hashable], k: int) -> set[Hashable]:
    if k != int(k) or k < 1:
        raise InvalidInputError(f"k >= 1 must hold and k must be whole, but got k={k}")
    if not relevant:
        raise InvalidInputError("at least one relevant passage is needed, but got none")
    return set(retrieved[:k]) & set(relevant)
