"""Measures over several completions of the same problem: Pass@k, Mean@k, Maj@k.

Notation: P problems; n completions of a problem, c of them correct; k drawn without replacement from the n.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from viprl._arrays import FloatArray
from viprl.errors import InvalidInputError

MAJ_DRAWS = 2000
MAJ_EXACT_COMPOSITIONS = 20_000


def pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> FloatArray | float:
    """Unbiased probability that at least one of k completions is correct.

    1 - C(n - c, k) / C(n, k): the share of the k-subsets of the n completions with a correct one (Chen et al. 2021,
    arXiv 2107.03374, eq. 1).

    Args:
        n: completions of each problem, scalar or (P,), at least k.
        c: correct completions, scalar or (P,), 0 <= c <= n.
        k: completions drawn, at least 1.

    Returns:
        (P,), or a float where both n and c are scalars.

    Raises:
        InvalidInputError: k > n, c > n, a negative count or a count that is not an integer.

    >>> pass_at_k(4, 1, 2)
    0.5
    >>> pass_at_k([4, 4], [0, 3], 2).tolist()
    [0.0, 1.0]
    """
    total, correct = np.broadcast_arrays(_counts("n", n), _counts("c", c))
    size = _draw_size(k, total)
    if total.size and (correct > total).any():
        raise InvalidInputError(f"c <= n must hold, but got c={correct.max()}, n={total[correct > total].min()}")
    wrong = total - correct
    # Below k wrong completions every subset holds a correct one. The product form keeps full precision:
    # C(w, k) / C(n, k) = prod_{i < k} (w - i) / (n - i).
    steps = np.arange(size)
    factors = np.clip(wrong[..., None] - steps, 0, None) / (total[..., None] - steps)
    result: FloatArray = 1.0 - factors.prod(axis=-1)
    return float(result) if result.ndim == 0 else result


def mean_at_k(correct: Sequence[bool | float], k: int) -> float:
    """Expected average correctness of k completions of one problem (AIME's Mean@32, "avg@k").

    The expectation over the k-subsets is the average of all n completions, whatever k is; so all of them are used.

    Args:
        correct: one number in [0, 1] (or a bool) for each completion.
        k: completions drawn, 1 <= k <= len(correct).

    >>> mean_at_k([1, 1, 0, 0], 1)
    0.5
    """
    values = np.asarray(correct, dtype=np.float64)
    if values.ndim != 1:
        raise InvalidInputError(f"`correct` must be one-dimensional, but got shape {values.shape}")
    _draw_size(k, np.array([len(values)]))
    if not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= 1):
        raise InvalidInputError("every entry of `correct` must lie in [0, 1]")
    return float(values.mean())


def maj_at_k(
    answers: Sequence[Hashable | None],
    gold: Hashable | Sequence[Hashable],
    k: int,
    *,
    seed: int = 0,
) -> float:
    """Probability that the majority answer of k completions, drawn without replacement, is correct.

    **Ties** are broken by a fair draw among the most frequent answers: two answers tied at the top, one of them
    correct, count one half. **No answer** (None or "") never wins a vote; if none of the k has an answer the vote is
    wrong. Answers are compared with ``==`` after the caller's own normalisation.

    Exact where k equals the number of completions or the k-subsets have few distinct vote counts; else the average
    of 2,000 seeded draws (standard error below .012).

    Args:
        answers: extracted answer of each completion.
        gold: the correct answer, or a list/tuple/set of acceptable ones.
        k: completions that vote, 1 <= k <= len(answers).
        seed: of the draws, where they are needed.

    Raises:
        InvalidInputError: k > n.

    >>> maj_at_k(["7", "7", "8"], "7", 3)
    1.0
    >>> maj_at_k(["7", "8"], "7", 2)
    0.5
    """
    size = _draw_size(k, np.array([len(answers)]))
    accepted = set(gold) if isinstance(gold, list | tuple | set | frozenset) else {gold}
    named = Counter(answer for answer in answers if answer is not None and answer != "")
    counts = np.array(list(named.values()), dtype=np.int64)
    right = np.array([answer in accepted for answer in named], dtype=bool)
    blank = len(answers) - int(counts.sum())
    if not right.any():
        return 0.0
    if size == len(answers):
        return float(_vote(counts[None, :], right)[0])
    pools = np.append(counts, blank)
    votes, weights = _compositions(pools, size)
    if votes is None:
        rng = np.random.default_rng(seed)
        votes = rng.multivariate_hypergeometric(pools, size, size=MAJ_DRAWS, method="marginals")
        weights = np.full(MAJ_DRAWS, 1.0 / MAJ_DRAWS)
    return float(np.clip(_vote(votes[:, :-1], right) @ weights, 0.0, 1.0))


def _vote(votes: NDArray[np.int64], right: NDArray[np.bool_]) -> FloatArray:
    """(S,) share of the top answers that are right, for S vote counts (S, A); 0 where nobody voted."""
    top = votes.max(axis=1, keepdims=True)
    leading = (votes == top) & (top > 0)
    result: FloatArray = (leading & right).sum(axis=1) / np.maximum(leading.sum(axis=1), 1)
    return result


def _compositions(pools: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64] | None, FloatArray]:
    """All vote counts of ``size`` draws from the pools with their hypergeometric probabilities; None if too many."""
    partial = np.zeros((1, 0), dtype=np.int64)
    used = np.zeros(1, dtype=np.int64)
    for position, pool in enumerate(pools):
        behind = int(pools[position + 1 :].sum())
        low, high = np.maximum(size - used - behind, 0), np.minimum(size - used, pool)
        repeats = np.maximum(high - low + 1, 0)
        if repeats.sum() > MAJ_EXACT_COMPOSITIONS:
            return None, np.empty(0)
        rows = np.repeat(np.arange(len(used)), repeats)
        take = np.arange(len(rows)) - np.repeat(np.cumsum(repeats) - repeats, repeats) + low[rows]
        partial = np.column_stack([partial[rows], take])
        used = used[rows] + take
    log_weight = _log_choose(pools[None, :], partial).sum(axis=1) - _log_choose(pools.sum(), np.array(size))
    return partial, np.exp(log_weight)


def _log_choose(n: ArrayLike, k: ArrayLike) -> FloatArray:
    n, k = np.asarray(n, float), np.asarray(k, float)
    result: FloatArray = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return result


def _counts(name: str, values: ArrayLike) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.dtype.kind not in "iub" and not np.array_equal(array, np.floor(array)):
        raise InvalidInputError(f"`{name}` must be whole numbers, but got {array.dtype}")
    if array.size and array.min() < 0:
        raise InvalidInputError(f"{name} >= 0 must hold, but got {array.min()}")
    return array.astype(np.int64)


def _draw_size(k: int, total: NDArray[np.int64]) -> int:
    if k != int(k) or k < 1:
        raise InvalidInputError(f"k >= 1 must hold and k must be whole, but got k={k}")
    if total.size == 0:
        return int(k)
    if k > total.min():
        raise InvalidInputError(f"k <= n must hold, but got (k={k}, n={total.min()})")
    return int(k)
