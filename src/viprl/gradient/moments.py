"""The variance of the RLOO and Dr. GRPO estimators for any n, from one pool of rollouts of a prompt.

Notation: N rollouts of one prompt with rewards R_i and gradients H_i, Gram matrix K_ij = <H_i, H_j>. The RLOO estimator
of n rollouts is the U-statistic with kernel h(i, j) = (R_i - R_j)(H_i - H_j) / 2, whose mean is the gradient g, so

    Var_rloo(n)    = (n-2) / (n (n-1)) V1 + 2 / (n (n-1)) V2
    Var_dr_grpo(n) = ((n-1) / n)^2 Var_rloo(n)                            (its mean is (n-1)/n g)
    V1 = 4 (E <h(1,2), h(1,3)> - ||g||^2) = tr Var((R - ER)(H - EH)),    V2 = E ||h(1,2)||^2 - ||g||^2

(Var is the trace of the covariance matrix). The three expectations run over two, three and four different rollouts;
each is estimated without bias by the mean over all such tuples, in O(N^2) through sums of the kernel's rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from viprl._arrays import FloatArray
from viprl.errors import InvalidInputError

ESTIMATORS = ("rloo", "dr_grpo")


@dataclass(frozen=True)
class GroupMoments:
    """Unbiased moments of one prompt.

    Attributes:
        v1, v2: the two constants of the variance curve (units: reward^2 x gradient^2).
        signal: squared norm of the mean gradient, unbiased (it may be negative).
        mean_reward: success probability for rewards in {0, 1}.
        rewards, gram: what they were computed from.
    """

    v1: float
    v2: float
    signal: float
    mean_reward: float
    rewards: FloatArray = field(repr=False)
    gram: FloatArray = field(repr=False)

    def variance(self, n: ArrayLike, estimator: str = "rloo") -> FloatArray:
        """(K,) variance of the estimator for group sizes n (K,)."""
        curve: FloatArray = variance_curve(self.v1, self.v2, n, estimator)
        return curve

    def standard_error(self, n: ArrayLike, estimator: str = "rloo") -> FloatArray:
        """(K,) jackknife standard error of ``variance(n)`` over rollouts."""
        sizes = np.atleast_1d(np.asarray(n, dtype=np.float64))
        left_out = self.jackknife()
        values = variance_curve(left_out[:, :1], left_out[:, 1:2], sizes[None, :], estimator)
        count = len(left_out)
        spread: FloatArray = np.sqrt((count - 1) / count * ((values - values.mean(0)) ** 2).sum(0))
        return spread

    def jackknife(self) -> FloatArray:
        """(N, 4) v1, v2, signal and mean reward without each of the rollouts in turn."""
        keep = ~np.eye(len(self.rewards), dtype=bool)
        return np.array([_moments(self.rewards[row], self.gram[np.ix_(row, row)]) for row in keep])


def variance_curve(v1: ArrayLike, v2: ArrayLike, n: ArrayLike, estimator: str = "rloo") -> Any:
    """Variance for group sizes n >= 2; v1, v2 and n broadcast."""
    if estimator not in ESTIMATORS:
        raise InvalidInputError(f"estimator must be one of {ESTIMATORS}, but got {estimator!r}")
    sizes = np.asarray(n, dtype=np.float64)
    if sizes.size and sizes.min() < 2:
        raise InvalidInputError(f"n >= 2 must hold, but got {sizes.min():g}")
    first, second = np.asarray(v1, dtype=np.float64), np.asarray(v2, dtype=np.float64)
    value = ((sizes - 2) * first + 2 * second) / (sizes * (sizes - 1))
    return value if estimator == "rloo" else ((sizes - 1) / sizes) ** 2 * value


def group_moments(rewards: ArrayLike, gram: ArrayLike) -> GroupMoments:
    """Moments of one prompt from rewards (N,) and the Gram matrix of its gradients (N, N); N >= 5 for the jackknife."""
    r = np.asarray(rewards, dtype=np.float64)
    k = np.asarray(gram, dtype=np.float64)
    if r.ndim != 1 or k.shape != (len(r), len(r)):
        raise InvalidInputError(f"rewards (N,) and gram (N, N) must fit, but got {r.shape}, {k.shape}")
    if len(r) < 5:
        raise InvalidInputError(f"at least 5 rollouts a prompt are needed, but got {len(r)}")
    return GroupMoments(*_moments(r, k), rewards=r, gram=k)


def _moments(r: FloatArray, k: FloatArray) -> tuple[float, float, float, float]:
    """(v1, v2, signal, mean reward) from sums over the kernel h(i, j), zero where i = j."""
    n = len(r)
    diagonal = np.diag(k)
    # sum over ordered pairs of ||h||^2
    gaps = (r[:, None] - r[None, :]) ** 2
    pairs = float((gaps * (diagonal[:, None] + diagonal[None, :] - 2 * k)).sum()) / 4
    # row sums of the kernel as combinations of gradients: row_i = sum_j h(i, j) = W_i . H
    weights = (np.diag(n * r - r.sum()) - r[:, None] + r[None, :]) / 2
    rows = float(np.einsum("ij,jk,ik->", weights, k, weights, optimize=True))  # sum_i ||row_i||^2
    column = weights.sum(0)
    total = float(column @ k @ column)  # ||sum_i row_i||^2: all ordered quadruples i != j, k != l
    triples = rows - pairs  # ordered (i, j, k), all different
    quadruples = total - 4 * triples - 2 * pairs
    pair_mean = pairs / (n * (n - 1))
    triple_mean = triples / (n * (n - 1) * (n - 2))
    signal = quadruples / (n * (n - 1) * (n - 2) * (n - 3))
    return 4 * (triple_mean - signal), pair_mean - signal, signal, float(r.mean())


@dataclass(frozen=True)
class OutcomeMeans:
    """Gradient moments by outcome, rewards in {0, 1}; NaN where an outcome did not occur.

    Attributes:
        s_plus, s_minus: mean ||H||^2 given success and failure.
        difference: unbiased ||mu_plus - mu_minus||^2, the squared distance of the two mean gradients.
        correlation: Pearson correlation of R and Z = ||H|| over the rollouts.
    """

    s_plus: float
    s_minus: float
    difference: float
    correlation: float


def outcome_means(rewards: ArrayLike, gram: ArrayLike) -> OutcomeMeans:
    """Moments by outcome of one prompt from rewards (N,) in {0, 1} and the Gram matrix (N, N)."""
    r = np.asarray(rewards, dtype=np.float64)
    k = np.asarray(gram, dtype=np.float64)
    good, bad = r == 1, r == 0
    if not (good | bad).all():
        raise InvalidInputError("rewards must be 0 or 1 to split by outcome")
    squares = np.diag(k)
    s_plus = float(squares[good].mean()) if good.any() else float("nan")
    s_minus = float(squares[bad].mean()) if bad.any() else float("nan")
    difference = float("nan")
    if good.sum() > 1 and bad.sum() > 1:
        plus, minus = k[np.ix_(good, good)], k[np.ix_(bad, bad)]
        difference = _off_diagonal_mean(plus) + _off_diagonal_mean(minus) - 2 * float(k[np.ix_(good, bad)].mean())
    norms = np.sqrt(squares)
    varied = good.any() and bad.any() and np.ptp(norms) > 0
    correlation = float(np.corrcoef(r, norms)[0, 1]) if varied else float("nan")
    return OutcomeMeans(s_plus, s_minus, difference, correlation)


def _off_diagonal_mean(k: FloatArray) -> float:
    n = len(k)
    return float((k.sum() - np.trace(k)) / (n * (n - 1)))
