"""GRPO: advantages divided by the group's standard deviation.

The paper's assumptions as in ``separable``: (R_j, H_j) i.i.d. within the prompt, R and H independent, Var(H) =
sigma_Z^2, binary rewards. The advantage is A_j = (R_j - mean(R)) / (s + epsilon), s^2 = sum_j (R_j - mean(R))^2 /
(n - ddof). The advantages sum to zero, so

    g = (1/n) sum_j A_j H_j = (1/n) sum_j A_j (H_j - E[H]):   E[g | R] = 0, and E[H] contributes no term at all;
    Var(g) = E[Var(g | R)] = sigma_Z^2 / n^2 * E[sum_j A_j^2].

With k of n rewards at the upper value and d the distance of the two values,

    S_k = sum_j (R_j - mean(R))^2 = d^2 k (n-k) / n,      sum_j A_j^2 = S_k / (sqrt(S_k / (n - ddof)) + epsilon)^2,

which is nearly (n - ddof) whenever 0 < k < n and 0 otherwise. Hence v(n) = E[sum_j A_j^2] / n^2, k ~ Binomial(n, p),
p from the posterior. For epsilon = 0: (n - ddof) / n^2 * (1 - E[p^n] - E[(1-p)^n]). The curve rises from 0 at n = 1,
has a maximum that lies the further out the closer p is to 0 or 1, and only then falls: it is neither monotone nor
convex. A rising stretch is the dead groups' doing: more rollouts make a zero gradient less likely. Minimising v over
that stretch takes rollouts away from prompts with p near 0 or 1 until their groups are all but surely dead: small
variance is bought with no gradient. So v is what the estimate scatters, and nothing to minimise.

What to minimise (``RelativeGRPO``). Let H_j = h + b (R_j - E[R]) + e_j, e independent of R with variance sigma_Z^2: for
binary rewards that is no restriction, b being the distance between the mean scores of successes and failures. Then

    E[g] = b m(n),   m(n) = (n-1)/n E[s],   while the gradient of E[R] is b Var(R).

Scaled by Var(R) / m(n), the estimate is the gradient of E[R] in expectation, whatever n, and has the variance

    v(n) (Var(R) / m(n))^2 = P(s > 0) / (n-1) * Var(R)^2 / E[s]^2 >= Var(R) / (n-1)

(epsilon = 0, ddof = 1), by E[s]^2 <= P(s > 0) E[s^2] (Cauchy-Schwarz), E[s^2] = Var(R). Equality holds where all live
groups have the same s: for binary rewards at n <= 3 and for p -> 0 or 1. In between the bound is missed by at most
2.6 % at n = 8, 4.7 % at 16, 6.7 % at 64. So the noise for each unit of signal is RLOO's after all: convex, separable,
of no weight where a prompt is surely dead, and estimated without bias at any size by a group's own variance. Scaled to
its own limit b sqrt(Var(R)) instead, the estimate has the variance 1 / (n-1) whatever the prompt (within the same few
per cent), and uniform groups are best: allocation serves the success rate, not GRPO's own objective.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from viprl._arrays import FloatArray
from viprl.errors import InvalidInputError
from viprl.variance.base import BiasWarning, VarianceModel, check_sizes
from viprl.variance.separable import RLOO

if TYPE_CHECKING:
    from viprl.prediction.base import Prediction

_CHUNK = 1 << 22  # elements of one (prompts, nodes, counts) block


class GRPO(VarianceModel):
    """Variance of the gradient estimate with advantages divided by the group's standard deviation.

    It measures; minimising it starves prompts near p = 0 and 1. Allocate by ``RelativeGRPO``.

    Args:
        ddof: 1 (torch's default, used by TRL and verl) or 0.
        epsilon: added to the standard deviation, in units of the reward (TRL 1e-4, verl 1e-6).
        reward_range: distance of the two reward values; 2 for rewards in {-1, 1}. It matters through epsilon only.

    >>> from viprl.prediction.base import Prediction
    >>> GRPO(epsilon=0.0).curve(Prediction.point([0.5]), [1, 2, 3]).round(4).tolist()
    [[0.0, 0.125, 0.1667]]
    """

    name = "grpo"
    convex_from: int | None = None

    def __init__(self, *, ddof: int = 1, epsilon: float = 1e-4, reward_range: float = 1.0) -> None:
        if ddof not in (0, 1):
            raise InvalidInputError(f"ddof must be 0 or 1, but got {ddof}")
        if not 0 <= epsilon < np.inf:
            raise InvalidInputError(f"epsilon >= 0 must hold, but got {epsilon}")
        if not 0 < reward_range < np.inf:
            raise InvalidInputError(f"reward_range > 0 must hold, but got {reward_range}")
        self.ddof = ddof
        self.epsilon = epsilon
        self.reward_range = reward_range

    def curve(self, prediction: Prediction | ArrayLike, sizes: ArrayLike) -> FloatArray:
        """(B, K) values of v_q at the sizes (K,), which must be whole.

        Raises:
            InvalidInputError: a plain array instead of a Prediction: E[p(1-p)] does not determine the curve.
        """
        return expect_counts(prediction, sizes, lambda n: self.squared_advantages(n) / n**2)

    def squared_advantages(self, n: int) -> FloatArray:
        """(n+1,) sum_j A_j^2 of a group of n with k = 0..n successes."""
        k = np.arange(n + 1, dtype=np.float64)
        scatter = self.reward_range**2 * k * (n - k) / n
        deviation = np.sqrt(scatter / max(n - self.ddof, 1)) + self.epsilon
        return np.divide(scatter, np.square(deviation), out=np.zeros(n + 1), where=scatter > 0)

    def check_min_group_size(self, smallest: int) -> None:
        """Warn with BiasWarning below 3, where every prompt's curve still rises."""
        if smallest < 3:
            warnings.warn(
                "GRPO needs min_group_size >= 3: below it every prompt's variance rises with its group, since smaller "
                f"groups are more often dead, and prompts are starved; got min_group_size={smallest}",
                BiasWarning,
                stacklevel=3,
            )

    def __repr__(self) -> str:
        return f"GRPO(ddof={self.ddof}, epsilon={self.epsilon}, reward_range={self.reward_range})"


class RelativeGRPO(RLOO):
    """GRPO's variance relative to its signal: v_q(n) = a_q / (n-1), after scaling to the gradient of the success rate.

    What the estimator "grpo" allocates by, for binary and real rewards; the head of the file derives it. ``prediction``
    is a Prediction or a plain (B,) array of a_q = E[Var(R)].

    >>> RelativeGRPO().variance([0.25, 0.09], [3, 4]).round(3).tolist()
    [0.125, 0.03]
    """

    name = "grpo"


def expect_counts(
    prediction: Prediction | ArrayLike, sizes: ArrayLike, statistic: Callable[[int], FloatArray]
) -> FloatArray:
    """(B, K) posterior means of a statistic of the number of successes among n rollouts, at the sizes (K,).

    Args:
        statistic: maps n to its values (n+1,) at 0..n successes.
    """
    n = check_sizes(sizes, whole=True).reshape(-1).astype(np.int64)
    nodes, weights = posterior_of_p(prediction)
    values = np.zeros((len(nodes), len(n)))
    if not values.size:
        return values
    largest = int(n.max())
    coefficients = _coefficients(n, largest, statistic)
    rows = max(1, _CHUNK // (nodes.shape[1] * (largest + 1)))
    for start in range(0, len(nodes), rows):
        block = slice(start, start + rows)
        pmf = _count_probabilities(nodes[block], largest)
        # One product per prompt: equal posteriors then give equal bits, so that ties are ties.
        values[block] = np.matmul(np.matmul(weights[block][:, None, :], pmf), coefficients)[:, 0, :]
    return values


def count_means(p: FloatArray, sizes: NDArray[np.int64], statistic: Callable[[int], FloatArray]) -> FloatArray:
    """(B, M, K) means of a statistic (see ``expect_counts``) at given success probabilities (B, M)."""
    largest = int(sizes.max())
    return np.asarray(np.matmul(_count_probabilities(p, largest), _coefficients(sizes, largest, statistic)))


def _coefficients(sizes: NDArray[np.int64], largest: int, statistic: Callable[[int], FloatArray]) -> FloatArray:
    """(largest + 1, K) expected statistic of n rollouts, given that ``largest`` rollouts have k successes.

    n of N rollouts drawn without replacement are n independent rollouts, so one distribution of counts, that of N,
    serves all sizes. Leaving out one of m+1 rollouts, k of them successes, leaves k-1 with chance k / (m+1): the values
    for m become those for m+1 by that average (degree elevation of a Bernstein polynomial).
    """
    table = np.zeros((len(sizes), largest + 1))
    for m in range(1, largest + 1):
        started = sizes < m
        if started.any():
            chance = np.arange(m + 1) / m
            kept = table[started, : m + 1]  # column m is still zero and has chance 1 of not being used
            table[started, : m + 1] = (1 - chance) * kept
            table[started, 1 : m + 1] += chance[1:] * kept[:, :m]
        table[sizes == m, : m + 1] = statistic(m)
    return np.ascontiguousarray(table.T)


def posterior_of_p(prediction: Any) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights (B, M) of the posterior of p."""
    if not hasattr(prediction, "nodes"):
        raise InvalidInputError(
            "this variance needs a Prediction (the distribution of p), but got a plain array; "
            "Prediction.point(p) makes one from probabilities"
        )
    spread, reward = np.asarray(prediction.bernoulli_variance), np.asarray(prediction.reward_variance)
    if spread.size:
        ratio = reward.sum() / spread.sum() if spread.sum() > 0 else 1.0
        if not np.allclose(reward, ratio * spread, rtol=1e-6, atol=1e-12):
            raise InvalidInputError(
                "this variance is derived for binary rewards, where reward_variance is proportional to E[p(1-p)], "
                "but the prediction is of real rewards"
            )
    nodes, weights = prediction.nodes()
    return nodes, weights


def _count_probabilities(p: FloatArray, n: int) -> FloatArray:
    """(B, M, n+1) Binomial(n, p) probabilities of 0..n successes."""
    k = np.arange(n + 1, dtype=np.float64)
    with np.errstate(divide="ignore"):  # a floor instead of log 0 = -infinity, so that 0 log 0 is 0
        log_p, log_q = np.maximum(np.log(p), -1e9)[..., None], np.maximum(np.log1p(-p), -1e9)[..., None]
    log_choose = special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)
    return np.asarray(np.exp(k * log_p + (n - k) * log_q + log_choose), dtype=np.float64)
