"""A stand-in for a rollout's squared gradient norm, from the log-probabilities of its own tokens alone.

With pi the distribution of a token and y the token sampled, d log pi(y) / d logits = e_y - pi, whose square is

    (1 - pi(y))^2 + sum_{k != y} pi(k)^2.

The second term is at most (sum_{k != y} pi(k))^2 = (1 - pi(y))^2, so the square lies between (1 - pi(y))^2 and twice
that: the lower bound, which needs no other token's probability, is the proxy's term. It stands for the gradient's norm
as far as the layers below act on all tokens alike and the gradients of a rollout's tokens are orthogonal. A constant
factor (the layers' common gain, 1 / temperature^2) does not matter to ``OutcomeMoments``, which compares norms.

It is for trainers whose gradients lie in sharded workers; ``viprl.gradient.norm_hook`` reads the norms themselves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from viprl.errors import InvalidInputError

FloatArray = NDArray[np.float64]

AGGREGATIONS = ("sum", "mean")
_ROUNDING = 1e-3  # log-probabilities computed in low precision may lie a little above zero


def logit_norms(log_probs: ArrayLike, mask: ArrayLike, *, aggregation: str = "sum") -> FloatArray:
    """Proxies of the squared gradient norms of rollouts: sum over own tokens of (1 - pi(y_t))^2.

    Args:
        log_probs: (C, T), or (T,) for one rollout: log-probabilities of the sampled tokens, under the policy that is
            trained and at the temperature that they were sampled with.
        mask: of the same shape; nonzero for the rollout's own tokens. The others are not read.
        aggregation: "sum" where the loss weighs a rollout's tokens alike whatever its length; "mean" where it divides
            by the rollout's length, which divides the squared norm by its square.

    Returns:
        (C,), or () for one rollout; 0 without own tokens, NaN where an own token's log-probability is NaN.

    Raises:
        InvalidInputError: shapes that differ, an unknown aggregation, or a number that is no log-probability.

    Example:
        >>> logit_norms(np.log([[0.5, 0.9], [1.0, 0.2]]), [[1, 0], [1, 1]]).round(2).tolist()
        [0.25, 0.64]
    """
    values, own = np.asarray(log_probs, dtype=np.float64), np.asarray(mask) != 0
    if values.ndim not in (1, 2) or values.shape != own.shape:
        raise InvalidInputError(f"log_probs and mask must be (C, T) or (T,) alike, but got {values.shape}, {own.shape}")
    if aggregation not in AGGREGATIONS:
        raise InvalidInputError(f"aggregation must be one of {AGGREGATIONS}, but got {aggregation!r}")
    values = np.where(own, values, 0.0)
    if (values > _ROUNDING).any():
        raise InvalidInputError(f"log-probabilities must not be above zero, but got {np.nanmax(values)}")
    total = (np.expm1(np.minimum(values, 0.0)) ** 2).sum(axis=-1)
    if aggregation == "mean":
        total = total / np.maximum(own.sum(axis=-1), 1) ** 2
    return np.asarray(total, dtype=np.float64)
