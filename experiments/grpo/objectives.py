"""What could be minimised for std-normalised GRPO: every candidate as a variance model that the solver takes.

k of n rollouts succeed; the group's contribution is g = (1/n) sum_j A_j H_j with A = (R - mean) / s. In units of the
score's scatter and of the distance between the mean scores of successes and failures,

    noise  v(n) = (n-1)/n^2 P(0 < k < n),        signal  m(n) = sqrt((n-1)/n) E sqrt(k (n-k)) / n  ->  sqrt(p (1-p)).
"""

from __future__ import annotations

from typing import Any

import numpy as np

import viprl
from viprl.prediction.base import Prediction
from viprl.variance.grpo import expect_counts


def noise(n: int) -> np.ndarray:
    """(n+1,) contribution to v(n) by the number of successes."""
    k = np.arange(n + 1)
    return ((k > 0) & (k < n)) * (n - 1) / n**2


def signal(n: int) -> np.ndarray:
    """(n+1,) contribution to m(n)."""
    k = np.arange(n + 1)
    return np.sqrt((n - 1) / n) * np.sqrt(k * (n - k)) / n


class Candidate:
    """A curve (B, K) to minimise."""

    convex_from = None

    def __init__(self, name: str) -> None:
        self.name = name

    def curve(self, prediction: Any, sizes: Any) -> np.ndarray:
        raise NotImplementedError

    def variance(self, prediction: Any, n: Any) -> np.ndarray:
        distinct, column = np.unique(np.broadcast_to(n, (len(prediction),)), return_inverse=True)
        return self.curve(prediction, distinct)[np.arange(len(prediction)), column.reshape(-1)]


class Noise(Candidate):
    """GRPO's own variance."""

    def curve(self, prediction: Any, sizes: Any) -> np.ndarray:
        return expect_counts(prediction, sizes, noise)


class Live(Candidate):
    """Minus the expected number of groups with both outcomes."""

    def curve(self, prediction: Any, sizes: Any) -> np.ndarray:
        return -expect_counts(prediction, sizes, lambda n: (noise(n) > 0).astype(float))


class Signal(Candidate):
    """Minus the expected signal."""

    def curve(self, prediction: Any, sizes: Any) -> np.ndarray:
        return -expect_counts(prediction, sizes, signal)


class Relative(Candidate):
    """sum v / (sum m)^2, linearised about uniform groups: v - (2 V / M) m."""

    def __init__(self, name: str, group_size: int) -> None:
        super().__init__(name)
        self.group_size = group_size

    def curve(self, prediction: Any, sizes: Any) -> np.ndarray:
        v, m = (expect_counts(prediction, sizes, s) for s in (noise, signal))
        both = [expect_counts(prediction, [self.group_size], s).sum() for s in (noise, signal)]
        return v - 2 * both[0] / max(both[1], 1e-12) * m


class Corrected(Candidate):
    """E_p[v(n) (t(p) / m(n))^2]: the variance after scaling the estimate to the expectation t(p).

    ``power`` 1/2: t = sqrt(p (1-p)), the estimator's own limit; 1: t = p (1-p), the gradient of the success rate.
    """

    def __init__(self, name: str, power: float) -> None:
        super().__init__(name)
        self.power = power

    def curve(self, prediction: Any, sizes: Any) -> np.ndarray:
        nodes, weights = prediction.nodes()
        p = np.clip(nodes.reshape(-1), 1e-6, 1 - 1e-6)
        v, m = (expect_counts(Prediction.point(p), sizes, s) for s in (noise, signal))
        target = ((p * (1 - p)) ** self.power)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.where(m > 0, v * (target / m) ** 2, np.inf)
        return np.einsum("bm,bmk->bk", weights, values.reshape(*nodes.shape, -1))


def candidates(group_size: int) -> dict[str, Any]:
    """All of them by name; "rloo" is p(1-p)/(n-1)."""
    return {
        "rloo": viprl.RLOO(),
        "signal": Signal("signal"),
        "relative": Relative("relative", group_size),
        "live": Live("live"),
        "own": Noise("own"),
        "corrected to its limit": Corrected("corrected to its limit", 0.5),
        "corrected to success": Corrected("corrected to success", 1.0),
    }
