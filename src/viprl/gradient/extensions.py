"""Variances beyond the paper's setting; derivations in docs/beyond-the-paper.md. Numpy alone.

Notation as in ``moments``: n rollouts of a prompt, R rewards, H gradients of the log-probability, p success
probability, V1, V2 the constants of the U-statistic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from viprl._arrays import FloatArray
from viprl.errors import InvalidInputError
from viprl.gradient.moments import variance_curve


def variance_with_kl_loss(
    v1: ArrayLike, v2: ArrayLike, penalty_variance: ArrayLike, covariance: ArrayLike, beta: float, n: ArrayLike
) -> Any:
    """Variance of RLOO with a KL term in the loss, g - beta mean_j D_j.

    Args:
        v1, v2: constants of the reward part.
        penalty_variance: tr Var(D), D the gradient of one rollout's KL estimate.
        covariance: tr Cov((R - p)(H - EH), D).
        beta: weight of the KL term; n: group sizes, at least 2.
    """
    sizes = np.asarray(n, dtype=np.float64)
    extra = beta**2 * np.asarray(penalty_variance) - 2 * beta * np.asarray(covariance)
    return variance_curve(v1, v2, sizes) + extra / sizes


def clipped_weight(ratio: ArrayLike, success: ArrayLike, low: float, high: float) -> FloatArray:
    """Factor on a rollout's (or token's) gradient under the clipped surrogate, for binary rewards in mixed groups.

    min(rho A, clip(rho, 1 - low, 1 + high) A) has the gradient rho A H, except where it is flat: rho > 1 + high for
    A > 0 (a success), rho < 1 - low for A < 0 (a failure).
    """
    if not (low >= 0 and high >= 0):
        raise InvalidInputError(f"low, high >= 0 must hold, but got {low}, {high}")
    rho, good = np.asarray(ratio, dtype=np.float64), np.asarray(success, dtype=bool)
    flat = np.where(good, rho > 1 + high, rho < 1 - low)
    return np.where(flat, 0.0, rho)


def posterior_baseline_factor(n: ArrayLike, prior_rollouts: ArrayLike) -> Any:
    """f(n) with Var = sigma^2 E[p(1-p)] f(n), for the baseline that joins the prediction and the other rollouts.

    b_j = (m p_hat + sum_{i != j} R_i) / (m + n - 1), with a Beta posterior worth m rollouts:
    f = (1 + 1 / (m + n - 1)) / n. m = 0 is RLOO, 1 / (n - 1).
    """
    sizes, m = np.asarray(n, dtype=np.float64), np.asarray(prior_rollouts, dtype=np.float64)
    if (sizes < 1).any() or (m < 0).any():
        raise InvalidInputError("n >= 1 and prior_rollouts >= 0 must hold")
    with np.errstate(divide="ignore"):
        return (1 + 1 / (m + sizes - 1)) / sizes


def prediction_baseline_factor(n: ArrayLike, prior_rollouts: ArrayLike) -> Any:
    """The same for the prediction alone, A = R - p_hat: f = (1 + 1/m) / n; below RLOO's 1/(n-1) if m > n - 1."""
    sizes, m = np.asarray(n, dtype=np.float64), np.asarray(prior_rollouts, dtype=np.float64)
    if (sizes < 1).any() or (m <= 0).any():
        raise InvalidInputError("n >= 1 and prior_rollouts > 0 must hold")
    return (1 + 1 / m) / sizes


def token_budget_sizes(variance: ArrayLike, cost: ArrayLike, tokens: float) -> FloatArray:
    """Real n_q that minimise sum_q v_q / (n_q - 1) subject to sum_q c_q n_q = tokens, without bounds.

    n_q - 1 is proportional to sqrt(v_q / c_q). The exact integer solution within bounds is
    ``solve_allocation(..., cost=c)``.
    """
    v, c = np.asarray(variance, dtype=np.float64), np.asarray(cost, dtype=np.float64)
    if (v < 0).any() or (c <= 0).any() or tokens <= c.sum():
        raise InvalidInputError("v >= 0, c > 0 and tokens > sum of costs (one rollout each) must hold")
    share = np.sqrt(v / c)
    return np.asarray(1 + (tokens - c.sum()) * share / (c @ share), dtype=np.float64)
