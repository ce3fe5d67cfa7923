"""RLOO and Dr. GRPO: v_q(n) = a_q f(n) with a_q the expected reward variance of the prompt.

One rollout j of a prompt has the reward R_j and the score H_j (mean of grad log pi over its tokens). The paper's
assumptions: the pairs (R_j, H_j) are independent and identically distributed within the prompt, R and H are
uncorrelated up to second order, Var(H) = sigma_Z^2. The prompt's contribution is g = (1/n) sum_j A_j H_j. Both
advantages sum to zero over the group, so E[H] drops out, and given the rewards only the scores' scatter is left:

    Var(g) = sigma_Z^2 / n^2 * E[sum_j A_j^2]
    Dr. GRPO:  A_j = R_j - mean(R),                 E[sum_j A_j^2] = (n-1) Var(R)         (Proposition 4.2)
    RLOO:      A_j = n/(n-1) (R_j - mean(R)),       E[sum_j A_j^2] = n^2/(n-1) Var(R)     (Proposition 4.3)

Var(R) is p(1-p) for rewards in {0, 1}, 4 p(1-p) for rewards in {-1, 1} and the reward's own variance for real rewards
(Appendix E). Its posterior mean is ``Prediction.reward_variance``; sigma_Z^2 is left out.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from viprl._arrays import FloatArray, IntArray
from viprl.errors import InvalidInputError
from viprl.variance.base import BiasWarning, Realised, VarianceModel, batch_size, check_sizes, is_curve

if TYPE_CHECKING:
    from viprl.feedback.rewards import Rewards
    from viprl.prediction.base import Prediction


class SeparableVariance(VarianceModel):
    """v_q(n) = weight_q * factor(n). Subclasses give the factor and, for the continuous relaxation, its slope.

    ``prediction`` is a Prediction or a plain (B,) array of a_q = E[p(1-p)] (or E[Var R]).
    A prompt of weight zero has variance zero at every size, also where the factor is infinite.
    """

    @abstractmethod
    def factor(self, n: ArrayLike) -> FloatArray:
        """f(n), of the shape of n; n may be real."""

    @abstractmethod
    def marginal_gain(self, n: ArrayLike) -> FloatArray:
        """f(n) - f(n+1), in a form that does not cancel."""

    @abstractmethod
    def size_at_slope(self, slope: ArrayLike) -> FloatArray:
        """The real n at which -f'(n) = slope, on the branch where f is convex; infinite for slope 0."""

    def weight(self, prediction: Prediction | ArrayLike) -> FloatArray:
        """(B,) a_q.

        Raises:
            InvalidInputError: weights that are negative or not finite.
        """
        values = getattr(prediction, "reward_variance", prediction)
        batch_size(prediction)
        weight = np.asarray(values, dtype=np.float64)
        if weight.size and not (weight.min() >= 0 and weight.max() < np.inf):
            raise InvalidInputError(
                "the variances E[p(1-p)] must be finite and non-negative, but got "
                f"{int(np.isnan(weight).sum())} NaN, minimum {weight.min()}, maximum {weight.max()}"
            )
        return weight

    def variance(self, prediction: Prediction | ArrayLike, n: ArrayLike) -> FloatArray:
        """v_q(n): n (B,) or a scalar -> (B,); n (K,) with K != B, or (1, K) -> (B, K)."""
        weight = self.weight(prediction)
        sizes = check_sizes(n, whole=False)
        if is_curve(sizes, len(weight)):
            return self.curve(prediction, sizes.reshape(-1))
        return _times(weight, np.broadcast_to(self.factor(sizes), weight.shape))

    def curve(self, prediction: Prediction | ArrayLike, sizes: ArrayLike) -> FloatArray:
        """(B, K) values of v_q at the sizes (K,)."""
        weight = self.weight(prediction)
        factor = self.factor(check_sizes(sizes, whole=False).reshape(-1))
        return _times(weight[:, None], factor[None, :])

    def realised(self, rewards: Rewards, sizes: IntArray, squared_norms: FloatArray | None = None) -> Realised:
        """s^2 f(n), as in every model, without the way round."""
        factor = self.factor(sizes)
        with np.errstate(invalid="ignore"):
            return Realised(rewards.variances * factor, rewards.noise * factor[:, None] * factor[None])

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class RLOO(SeparableVariance):
    """Leave-one-out advantages: v_q(n) = a_q / (n-1) (Proposition 4.3); infinite at n = 1 for a_q > 0.

    >>> RLOO().variance([0.25, 0.09], [3, 4]).round(3).tolist()
    [0.125, 0.03]
    """

    name = "rloo"
    convex_from: int | None = 1

    def factor(self, n: ArrayLike) -> FloatArray:
        """1 / (n-1)."""
        n = np.asarray(n, dtype=np.float64)
        with np.errstate(divide="ignore"):
            return np.asarray(1.0 / (n - 1.0), dtype=np.float64)

    def marginal_gain(self, n: ArrayLike) -> FloatArray:
        """1 / (n (n-1))."""
        n = np.asarray(n, dtype=np.float64)
        with np.errstate(divide="ignore"):
            return np.asarray(1.0 / (n * (n - 1.0)), dtype=np.float64)

    def size_at_slope(self, slope: ArrayLike) -> FloatArray:
        """1 + 1 / sqrt(slope) (Theorem 5.2)."""
        with np.errstate(divide="ignore"):
            return np.asarray(1.0 + 1.0 / np.sqrt(np.asarray(slope, dtype=np.float64)), dtype=np.float64)


class DrGRPO(SeparableVariance):
    """Advantages without division by the standard deviation: v_q(n) = a_q (n-1) / n^2 (Proposition 4.2).

    The estimator is (n-1)/n of the gradient in expectation. Its curve is 0 at n = 1 and not convex below n = 3:
    minimising it there saves variance by not estimating anything, so a smallest group size below 3 warns.
    ``bias_corrected_variance`` is the variance of the estimator divided by (n-1)/n, which is RLOO's.

    >>> DrGRPO().variance([0.25, 0.25], [1, 4]).tolist()
    [0.0, 0.046875]
    """

    name = "dr_grpo"
    convex_from: int | None = 3

    def factor(self, n: ArrayLike) -> FloatArray:
        """(n-1) / n^2."""
        n = np.asarray(n, dtype=np.float64)
        return np.asarray((n - 1.0) / (n * n), dtype=np.float64)

    def marginal_gain(self, n: ArrayLike) -> FloatArray:
        """(n^2 - n - 1) / (n^2 (n+1)^2); negative at n = 1."""
        n = np.asarray(n, dtype=np.float64)
        return np.asarray((n * n - n - 1.0) / np.square(n * (n + 1.0)), dtype=np.float64)

    def size_at_slope(self, slope: ArrayLike) -> FloatArray:
        """The largest root of (n-2)/n^3 = slope (Theorem 5.1); 3, the branch's end, where slope > 1/27.

        Written as n^3 - n/s + 2/s = 0, a depressed cubic with three real roots for s <= 1/27.
        """
        s = np.clip(np.asarray(slope, dtype=np.float64), 0.0, 1.0 / 27.0)
        with np.errstate(divide="ignore"):
            radius = 2.0 / np.sqrt(3.0 * s)
        root = radius * np.cos(np.arccos(-np.minimum(np.sqrt(27.0 * s), 1.0)) / 3.0)
        return np.asarray(np.where(s >= 1.0 / 27.0, 3.0, np.maximum(root, 3.0)), dtype=np.float64)

    def bias_corrected_variance(self, prediction: Prediction | ArrayLike, n: ArrayLike) -> FloatArray:
        """Variance after multiplying the estimate by n/(n-1), which makes it unbiased; infinite at n = 1."""
        return RLOO().variance(prediction, n)

    def check_min_group_size(self, smallest: int) -> None:
        """Warn with BiasWarning below 3."""
        if smallest < 3:
            warnings.warn(
                "Dr. GRPO needs min_group_size >= 3: below it the variance falls because the estimate shrinks "
                f"towards zero, and prompts are starved; got min_group_size={smallest}. "
                "See DrGRPO.bias_corrected_variance.",
                BiasWarning,
                stacklevel=3,
            )


def _times(weight: FloatArray, factor: FloatArray) -> FloatArray:
    """weight * factor, with 0 * infinity = 0."""
    with np.errstate(invalid="ignore"):
        product = weight * factor
    if np.isinf(factor).any():
        product = np.where(weight == 0.0, 0.0, product)
    return np.asarray(product, dtype=np.float64)
