"""Online Bayesian regression of what prompts' outcomes have in common, with learned precisions of feature blocks.

Notation: F features, B prompts in the batch. w ~ Normal(w0, diag(1 / alpha)), one alpha a block of features. Each
prompt enters once, with its latest outcome, linearised at its prediction (one Fisher-scoring step). alpha follows
MacKay's fixed point of the evidence (Neural Computation 4, 1992) under a Gamma prior; how much prompts differ beyond
what features say is learned from the prediction errors on prompts never seen before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg, special

from viprl._arrays import FloatArray

INTERCEPT_PRECISION = 1.0
PRECISION_MODE, PRECISION_WEIGHT = 3.0, 2.0
CORRELATION, CORRELATION_WEIGHT = 0.57, 50.0
EDGE = 0.02
LARGEST_WEIGHT = 1e6  # beyond, on the scale of logits, lies numerical trouble alone


class Linear(NamedTuple):
    """Posterior of the linear predictor: mean (B,), variance (B,)."""

    mean: FloatArray
    variance: FloatArray

    def rate(self) -> FloatArray:
        """(B,) E[sigmoid] by MacKay's probit approximation."""
        return np.asarray(special.expit(self.mean / np.sqrt(1 + np.pi / 8 * self.variance)), np.float64)


class GroupedRegression:
    """The Gaussian core: posterior of w given working observations.

    Args:
        groups: name -> columns of each block; column 0 is the intercept.
        width: F.
        start: prior mean of the intercept, on the scale of the linear predictor.
        moments: (value, weight) that the moment estimate of the prompts' spread starts from.
    """

    def __init__(self, groups: Mapping[str, slice], width: int, start: float, moments: tuple[float, float]) -> None:
        self._groups = dict(groups)
        self._origin = np.zeros(width)
        self._origin[0] = start
        self._start = np.array([moments[0] * moments[1], moments[1]])
        self.restart()

    def restart(self) -> None:
        """Forget everything: the posterior is the prior again."""
        width = len(self._origin)
        self.alpha = np.full(len(self._groups), PRECISION_MODE)
        self.information = np.zeros((width, width))  # lower triangle
        self.pull = np.zeros(width)
        self.moments = self._start.copy()
        self._refit()

    def ratio(self, low: float, high: float) -> float:
        """The moment estimate, cut to [low, high]."""
        return float(np.clip(self.moments[0] / self.moments[1], low, high))

    def add_moments(self, found: float, weight: float) -> None:
        self.moments += np.array([found, weight])

    def predict(self, x: FloatArray) -> Linear:
        """Linear predictor of features x (B, F)."""
        spread = x @ self._inverse.T
        return Linear(x @ self.weights, np.einsum("bf,bf->b", spread, spread))

    def without(self, linear: Linear, weight: FloatArray, target: FloatArray) -> Linear:
        """The prediction that the model would make had it not seen the prompt itself (weight 0: it has not)."""
        leverage = np.clip(weight * linear.variance, 0.0, 0.9)
        return Linear(
            linear.mean - leverage / (1 - leverage) * (target - linear.mean) * (weight > 0),
            linear.variance / (1 - leverage),
        )

    def learn(self, x: FloatArray, weight: FloatArray, pull: FloatArray) -> bool:
        """Add working observations: weight (B,) and weight * target (B,), as changes to what a prompt gave before.

        Returns:
            False where the posterior cannot be computed any more; ``restart`` is then the way on.
        """
        self._update_precisions()
        scaled = x * np.sqrt(np.abs(weight))[:, None]
        for part, sign in ((scaled[weight > 0], 1.0), (scaled[weight < 0], -1.0)):
            if len(part):
                self.information += linalg.blas.dsyrk(sign, part.T, lower=1)
        self.pull += x.T @ pull
        return self._refit()

    def _precision(self) -> FloatArray:
        diagonal = np.full(len(self._origin), INTERCEPT_PRECISION)
        for alpha, columns in zip(self.alpha, self._groups.values(), strict=True):
            diagonal[columns] = alpha
        return diagonal

    def _refit(self) -> bool:
        prior = self._precision()
        total = self.information + np.diag(prior)
        if not (np.isfinite(total).all() and np.isfinite(self.pull).all() and np.isfinite(self.moments).all()):
            return False
        try:
            factor = linalg.cholesky(total, lower=True, check_finite=False)
        except linalg.LinAlgError:
            return False
        self.weights = linalg.cho_solve((factor, True), self.pull + prior * self._origin, check_finite=False)
        self._inverse = linalg.lapack.dtrtri(factor, lower=1)[0]
        return bool(np.isfinite(self.weights).all() and np.abs(self.weights).max() < LARGEST_WEIGHT)

    def _update_precisions(self) -> None:
        variances = np.square(self._inverse).sum(axis=0)
        for i, columns in enumerate(self._groups.values()):
            size = columns.stop - columns.start
            determined = size - self.alpha[i] * variances[columns].sum()
            length = float(self.weights[columns] @ self.weights[columns])
            self.alpha[i] = (determined + PRECISION_WEIGHT) / (length + PRECISION_WEIGHT / PRECISION_MODE)

    def state(self) -> dict[str, Any]:
        return {
            "alpha": self.alpha.copy(),
            "information": self.information.copy(),
            "pull": self.pull.copy(),
            "moments": self.moments.copy(),
        }

    def load(self, state: Mapping[str, Any]) -> bool:
        """False where the state's posterior cannot be computed."""
        for name in self.state():
            setattr(self, name, np.array(state[name], np.float64))
        return self._refit()


class GroupedLogistic(GroupedRegression):
    """Logistic regression of the success rate.

    Quasi-likelihood: a rate of n rollouts has mean m = sigmoid(x w) and variance m (1 - m) (rho + (1 - rho) / n):
    binomial noise around prompts that differ among themselves with intra-class correlation rho.
    """

    def __init__(self, groups: Mapping[str, slice], width: int, start: float) -> None:
        super().__init__(groups, width, float(special.logit(start)), (CORRELATION, CORRELATION_WEIGHT))

    @property
    def correlation(self) -> float:
        return self.ratio(0.02, 0.98)

    def linearise(self, linear: Linear, rate: FloatArray, rollouts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Weight (B,) and target (B,) of the working observations."""
        m = np.clip(special.expit(linear.mean), EDGE, 1 - EDGE)
        slope = m * (1 - m)
        rho = self.correlation
        return slope / (rho + (1 - rho) / rollouts), special.logit(m) + (rate - m) / slope

    def learn_correlation(self, linear: Linear, rate: FloatArray, rollouts: FloatArray) -> None:
        """Moments of the errors on prompts that were new: E (rate - m)^2 / (m (1 - m)) = rho + (1 - rho) / n."""
        m = np.clip(linear.rate(), EDGE, 1 - EDGE)
        excess = (rate - m) ** 2 / (m * (1 - m)) - 1 / rollouts
        self.add_moments(float(excess.sum()), float((1 - 1 / rollouts).sum()))
