"""MaxRL: advantages divided by the group's mean reward, which follow the log of the success rate (arXiv 2602.02710).

Rewards in {0, 1}, K of n rollouts succeed, A_j = (R_j - K/n) / (K/n), and 0 for all where K = 0. With q = 1 - p,
H_j = h + b (R_j - p) + e_j (see ``grpo``; E[H] drops out since the advantages sum to zero), grad p = b p q:

    E[g] = E[1 - K/n; K > 0] b = grad p (1 - q^(n-1)) / p,
    v(n) = E[sum_j A_j^2] / n^2 = E[(n-K)/K; K > 0] / n        (times Var(e)).

So n rollouts follow the log of p up to the n-1 first terms of its series, grad log p = grad p (1 + q + q^2 + ...): the
size of a group decides what is trained. As for GRPO, a rising stretch of v is the dead groups' doing, and minimising it
takes rollouts from hard prompts until their groups are dead. Variances are compared at one objective, the first T
terms, grad p (1 - q^T) / p: scaled by (1 - q^T) / (1 - q^(n-1)) the estimate has this mean whatever n, and the variance

    v(n) ((1 - q^T) / (1 - q^(n-1)))^2,

about q / (p n) for p well above 1/T and p T^2 / (n-1) well below: convex and falling in n. A prompt that is
surely dead or solved has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from viprl._arrays import FloatArray
from viprl.errors import InvalidInputError
from viprl.variance.base import VarianceModel, check_sizes
from viprl.variance.grpo import count_means, posterior_of_p

if TYPE_CHECKING:
    from viprl.prediction.base import Prediction

_CHUNK = 1 << 22  # elements of one (prompts, nodes, sizes) block


class MaxRL(VarianceModel):
    """Variance of the gradient estimate with advantages (r - mean) / mean, at the objective of T terms.

    Args:
        terms: T; a step of uniform groups of n rollouts trains n - 1 terms.

    Raises:
        InvalidInputError: ``terms`` is no positive integer.

    >>> from viprl.prediction.base import Prediction
    >>> MaxRL(terms=7).curve(Prediction.point([0.5, 0.05]), [4, 8]).round(3).tolist()
    [[0.388, 0.17], [0.591, 0.265]]
    """

    name = "maxrl"
    convex_from: int | None = 2

    def __init__(self, *, terms: int = 7) -> None:
        if isinstance(terms, bool) or not isinstance(terms, int) or terms < 1:
            raise InvalidInputError(f"`terms` must be a positive integer, but got {terms!r}")
        self.terms = terms

    def curve(self, prediction: Prediction | ArrayLike, sizes: ArrayLike) -> FloatArray:
        """(B, K) values of v_q at the sizes (K,); infinite at n = 1 unless the prompt is surely dead or solved."""
        n = check_sizes(sizes, whole=True).reshape(-1).astype(np.int64)
        nodes, weights = posterior_of_p(prediction)
        values = np.zeros((len(nodes), len(n)))
        if not values.size:
            return values
        rows = max(1, _CHUNK // (nodes.shape[1] * (int(n.max()) + 1)))
        for start in range(0, len(nodes), rows):
            block = slice(start, start + rows)
            scatter = count_means(nodes[block], n, _squared_advantages)
            scaled = scatter * np.square(self._scale(nodes[block], n))
            values[block] = np.matmul(weights[block][:, None, :], scaled)[:, 0, :]
        alive = np.asarray((weights * nodes * (1.0 - nodes)).sum(axis=1) > 0)
        values[np.ix_(alive, n == 1)] = np.inf
        return values

    def _scale(self, p: FloatArray, n: Any) -> FloatArray:
        """(B, M, K) (1 - q^T) / (1 - q^(n-1)); its limit T / (n-1) at p = 0, and 0 at n = 1."""
        with np.errstate(divide="ignore"):
            log_q = np.log1p(-p)[..., None]
        pairs = np.maximum(n - 1, 1).astype(np.float64)
        short = -np.expm1(pairs * log_q)
        limit = np.broadcast_to(self.terms / pairs, short.shape)
        ratio = np.divide(-np.expm1(self.terms * log_q), short, out=limit.copy(), where=short > 0)
        return np.where(n > 1, ratio, 0.0)

    def __repr__(self) -> str:
        return f"MaxRL(terms={self.terms})"


def _squared_advantages(n: int) -> FloatArray:
    """(n+1,) sum_j A_j^2 / n^2 of a group of n with k = 0..n successes: (n - k) / (k n)."""
    k = np.arange(n + 1, dtype=np.float64)
    return np.divide(n - k, k * n, out=np.zeros(n + 1), where=k > 0)
