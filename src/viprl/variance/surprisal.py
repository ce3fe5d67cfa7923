"""A stand-in for a rollout's squared gradient norm, from the log-probabilities of its own tokens alone.

A token's gradient at the logits is e_y - pi, whose square lies between (1 - pi(y))^2 and twice that. Both this and the
surprisal -log pi(y) vanish for a certain token and are small together (-log pi = (1 - pi) + (1 - pi)^2 / 2 + ...), but
the gradient at the logits is at most 2 and the surprisal has no bound: it says more of how much larger the gradients of
rare outcomes are, which is all that an allocation can use. On the arithmetic model surprisal was never the worse of
the two, and kept allocation nearer to uniform where neither could help (experiments/gradient).

It is for trainers whose gradients lie in sharded workers; ``viprl.gradient.norm_hook`` reads the norms themselves. A
constant factor does not matter to ``OutcomeMoments``, which compares norms.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from viprl._arrays import FloatArray
from viprl.errors import InvalidInputError

AGGREGATIONS = ("sum", "mean")
_ROUNDING = 1e-3  # log-probabilities computed in low precision may lie a little above zero


def surprisals(log_probs: ArrayLike, mask: ArrayLike, *, aggregation: str = "sum") -> FloatArray:
    """Stand-ins for the squared gradient norms of rollouts: sum over own tokens of -log pi(y_t).

    Args:
        log_probs: (C, T), or (T,) for one rollout: log-probabilities of the sampled tokens, in nats, under the policy
            that is trained and at the temperature that they were sampled with.
        mask: of the same shape; nonzero for the rollout's own tokens. The others are not read.
        aggregation: "sum" where the loss weighs a rollout's tokens alike whatever its length; "mean" where it divides
            by the rollout's length, which divides the squared norm by its square.

    Returns:
        (C,), or () for one rollout; 0 without own tokens, NaN (unknown) where an own token's log-probability is NaN or
        minus infinity.

    Raises:
        InvalidInputError: shapes that differ, an unknown aggregation, or a number that is no log-probability.

    Example:
        >>> surprisals([[-0.5, -2.0], [-1.0, -0.25]], [[1, 0], [1, 1]]).tolist()
        [0.5, 1.25]
    """
    values, own = np.asarray(log_probs, dtype=np.float64), np.asarray(mask) != 0
    if values.ndim not in (1, 2) or values.shape != own.shape:
        raise InvalidInputError(f"log_probs and mask must be (C, T) or (T,) alike, but got {values.shape}, {own.shape}")
    if aggregation not in AGGREGATIONS:
        raise InvalidInputError(f"aggregation must be one of {AGGREGATIONS}, but got {aggregation!r}")
    values = np.where(own, values, 0.0)
    if (values > _ROUNDING).any():
        raise InvalidInputError(f"log-probabilities must not be above zero, but got {np.nanmax(values)}")
    total = np.maximum(-values, 0.0).sum(axis=-1)
    if aggregation == "mean":
        total = total / np.maximum(own.sum(axis=-1), 1) ** 2
    return np.asarray(np.where(np.isinf(total), np.nan, total), dtype=np.float64)
