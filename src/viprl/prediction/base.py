"""What a predictor returns and what it must be able to do.

Notation: B prompts in the batch, M quadrature nodes, K group sizes; p is a prompt's success probability.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from viprl._arrays import BoolArray, FloatArray
from viprl.errors import InvalidInputError

PromptId = str | int

QUADRATURE_NODES = 16


class Prediction:
    """Posterior of the success probability p of each prompt of a batch.

    Attributes:
        mean: (B,) posterior mean of p.
        bernoulli_variance: (B,) posterior mean of p(1-p); at most ``mean * (1 - mean)``, by the posterior variance.
        reward_variance: (B,) what the DrGRPO and RLOO variance models scale with; equals ``bernoulli_variance`` for
            rewards in {0, 1} and the expected reward variance for real rewards.
        cold: (B,) True where the prompt has no observation of its own yet.
    """

    def __init__(
        self,
        mean: ArrayLike,
        bernoulli_variance: ArrayLike,
        *,
        quadrature: Callable[[], tuple[FloatArray, FloatArray]],
        cold: ArrayLike | None = None,
        reward_variance: ArrayLike | None = None,
        powers: Callable[[FloatArray], tuple[FloatArray, FloatArray]] | None = None,
        square: FloatArray | None = None,
    ) -> None:
        self.mean = _vector("mean", mean)
        self.bernoulli_variance = _vector("bernoulli_variance", bernoulli_variance, len(self.mean))
        self.reward_variance = (
            self.bernoulli_variance
            if reward_variance is None
            else _vector("reward_variance", reward_variance, len(self.mean))
        )
        flags = np.zeros(len(self.mean), bool) if cold is None else np.asarray(cold, bool)
        if flags.shape != self.mean.shape:
            raise InvalidInputError(f"`cold` must have the shape of `mean`, but got {flags.shape}, {self.mean.shape}")
        self.cold: BoolArray = flags
        self._quadrature, self._powers, self._square = quadrature, powers, square
        for array in (self.mean, self.bernoulli_variance, self.reward_variance, self.cold):
            array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.mean)

    def __repr__(self) -> str:
        if not len(self):
            return "Prediction(no prompts)"
        low, high = float(self.mean.min()), float(self.mean.max())
        return (
            f"Prediction({len(self)} prompts, {int(self.cold.sum())} cold; mean {self.mean.mean():.3f} "
            f"[{low:.3f}, {high:.3f}], reward variance {self.reward_variance.mean():.4g})"
        )

    def __getitem__(self, index: ArrayLike | slice) -> Prediction:
        rows = index if isinstance(index, slice) else np.asarray(index)

        def quadrature() -> tuple[FloatArray, FloatArray]:
            nodes, weights = self.nodes()
            return nodes[rows], weights[rows]

        return Prediction(
            self.mean[rows],
            self.bernoulli_variance[rows],
            quadrature=quadrature,
            cold=self.cold[rows],
            reward_variance=self.reward_variance[rows],
            square=None if self._square is None else self._square[rows],
        )

    def nodes(self) -> tuple[FloatArray, FloatArray]:
        """Quadrature of the posterior: nodes (B, M) in [0, 1] and weights (B, M) whose rows sum to one."""
        return self._quadrature()

    def expect(self, f: Callable[[FloatArray], NDArray[Any]]) -> FloatArray:
        """Posterior mean of f(p).

        Args:
            f: maps an array (B, M) of probabilities to (B, M) or (B, M, K).

        Returns:
            (B,) or (B, K).
        """
        nodes, weights = self.nodes()
        values = np.asarray(f(nodes), dtype=np.float64)
        if values.shape[:2] != nodes.shape:
            raise InvalidInputError(f"f(p) must start with the shape of p, but got {values.shape} for {nodes.shape}")
        result: FloatArray = np.einsum("bm...,bm->b...", values, weights)
        return result

    @property
    def bernoulli_square(self) -> FloatArray:
        """(B,) posterior mean of p^2 (1-p)^2."""
        return self.expect(lambda p: np.square(p * (1.0 - p))) if self._square is None else self._square

    def alike(self, n: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """(E[p^n], E[(1-p)^n]), each (B,): the chances that n (B,) rollouts all succeed, and that all fail."""
        sizes = np.asarray(n, dtype=np.float64)
        if self._powers is not None:
            return self._powers(sizes)
        return self.expect(lambda p: p ** sizes[:, None]), self.expect(lambda p: (1 - p) ** sizes[:, None])

    @classmethod
    def point(cls, p: ArrayLike, *, cold: ArrayLike | None = None) -> Prediction:
        """A plug-in prediction: all mass at p (B,). E[p(1-p)] is then p(1-p), which over-states certainty."""
        mean = _probability("p", p)
        return cls(
            mean,
            mean * (1 - mean),
            quadrature=lambda: (mean[:, None].copy(), np.ones((len(mean), 1))),
            cold=cold,
        )

    @classmethod
    def beta(cls, alpha: ArrayLike, beta: ArrayLike, *, cold: ArrayLike | None = None) -> Prediction:
        """Beta(alpha, beta) posteriors, both (B,) and positive."""
        a = _vector("alpha", alpha)
        b = _vector("beta", beta, len(a))
        if len(a) and not (a.min() > 0 and b.min() > 0):
            raise InvalidInputError(f"alpha, beta > 0 must hold, but got minima {a.min()}, {b.min()}")
        total = a + b
        return cls(
            a / total,
            a * b / (total * (total + 1)),
            quadrature=lambda: _beta_quadrature(a, b),
            cold=cold,
            powers=lambda n: (
                np.exp(special.betaln(a + n, b) - special.betaln(a, b)),
                np.exp(special.betaln(a, b + n) - special.betaln(a, b)),
            ),
            square=a * (a + 1) / (total * (total + 1)) * b * (b + 1) / ((total + 2) * (total + 3)),
        )

    @classmethod
    def logistic_normal(cls, mean: ArrayLike, variance: ArrayLike, *, cold: ArrayLike | None = None) -> Prediction:
        """p = sigmoid(g), g ~ Normal(mean, variance); both (B,), variance non-negative."""
        m = _vector("mean", mean)
        v = _vector("variance", variance, len(m))
        if len(v) and v.min() < 0:
            raise InvalidInputError(f"variance >= 0 must hold, but got minimum {v.min()}")
        x, w = special.roots_hermitenorm(QUADRATURE_NODES)
        nodes = special.expit(m[:, None] + np.sqrt(v)[:, None] * x)
        return cls.from_nodes(nodes, w / w.sum(), cold=cold)

    @classmethod
    def from_nodes(cls, nodes: ArrayLike, weights: ArrayLike, *, cold: ArrayLike | None = None) -> Prediction:
        """Discrete posteriors: nodes (B, M) with weights (M,) or (B, M), normalised here per prompt."""
        p = np.asarray(nodes, dtype=np.float64)
        if p.ndim != 2:
            raise InvalidInputError(f"`nodes` must be (B, M), but got shape {p.shape}")
        if p.size and not (p.min() >= 0 and p.max() <= 1):
            raise InvalidInputError(f"0 <= nodes <= 1 must hold, but got [{p.min()}, {p.max()}]")
        w = np.broadcast_to(np.asarray(weights, dtype=np.float64), p.shape)
        total = w.sum(axis=1, keepdims=True)
        if p.size and not (w.min() >= 0 and total.min() > 0):
            raise InvalidInputError("weights must be non-negative with a positive sum for every prompt")
        w = w / total
        mean = np.clip(np.einsum("bm,bm->b", p, w), 0.0, 1.0)
        spread = np.einsum("bm,bm->b", p * (1 - p), w)
        return cls(mean, spread, quadrature=lambda: (p, w), cold=cold)


class Belief(NamedTuple):
    """What is believed of one prompt, as plain numbers; see ``Prediction``.

    Attributes:
        square: E[p^2 (1-p)^2].
    """

    mean: float
    bernoulli_variance: float
    reward_variance: float
    square: float
    cold: bool


class Predictor(ABC):
    """Predicts success probabilities of prompts and learns from their rollouts: the base of every predictor.

    A subclass gives ``predict``, ``observe`` and its state; one that learns real rewards sets ``reward_kind = "real"``
    and gives ``observe_rewards`` too. The other methods may stay as they are.
    """

    reward_kind: Literal["binary", "real"] = "binary"
    """What the allocator tells it: success counts by ``observe``, or moments of real rewards by ``observe_rewards``."""

    @abstractmethod
    def predict(self, ids: Sequence[PromptId]) -> Prediction:
        """Prediction for B prompts; pure: no state changes, no randomness."""

    @abstractmethod
    def observe(self, ids: Sequence[PromptId], successes: ArrayLike, rollouts: ArrayLike) -> None:
        """Learn from one step. successes, rollouts: (B,); zero rollouts carry no news; repeated ids add up."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything the next step needs, as arrays, numbers, strings and nested dicts."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state_dict()``; continuing is then bit for bit the same."""

    def observe_rewards(
        self, ids: Sequence[PromptId], means: ArrayLike, variances: ArrayLike, rollouts: ArrayLike
    ) -> None:
        """Learn from one step of real rewards: (B,) mean, sample variance (ddof 1; NaN below two) and count."""
        raise InvalidInputError(
            f"real rewards are learnt by predictors of reward_kind 'real', but {type(self).__name__} learns successes"
        )

    def belief(self, prompt_id: PromptId) -> Belief:
        """The prediction for one prompt, which a stream asks for at every offer: worth a short way of its own."""
        found = self.predict((prompt_id,))
        square = found.expect(lambda p: np.square(p * (1.0 - p)))
        mean, spread, reward = (float(x[0]) for x in (found.mean, found.bernoulli_variance, found.reward_variance))
        return Belief(mean, spread, reward, float(square[0]), bool(found.cold[0]))

    def merge_state(self, state: dict[str, Any]) -> dict[str, list[PromptId]] | None:
        """Load the state of a run over other prompts: the ids that are ``new`` here, ``gone`` and ``kept``; None where
        the predictor does not tell prompts apart, or takes only its own."""
        self.load_state_dict(state)
        return None

    def metrics(self) -> dict[str, float]:
        """Numbers worth logging (drift, learned hyper-parameters)."""
        return {}


def _vector(name: str, values: ArrayLike, length: int | None = None) -> FloatArray:
    array = np.array(values, dtype=np.float64)
    if array.ndim != 1:
        raise InvalidInputError(f"`{name}` must be one-dimensional, but got shape {array.shape}")
    if length is not None and len(array) != length:
        raise InvalidInputError(f"`{name}` must have length {length}, but got {len(array)}")
    if array.size and not np.isfinite(array).all():
        wrong = int((~np.isfinite(array)).sum())
        raise InvalidInputError(f"`{name}` must be finite, but got {wrong} values that are not")
    return array


def _probability(name: str, values: ArrayLike) -> FloatArray:
    array = _vector(name, values)
    if array.size and not (array.min() >= 0 and array.max() <= 1):
        raise InvalidInputError(f"0 <= {name} <= 1 must hold, but got [{array.min()}, {array.max()}]")
    return array


def _beta_quadrature(a: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Gauss-Jacobi quadrature for each Beta(a, b): exact for polynomials in p up to degree 2 * QUADRATURE_NODES - 1.

    Golub and Welsch (1969): nodes and weights are the eigenvalues and squared first eigenvector components of the
    symmetric tridiagonal matrix of the Jacobi polynomials' recurrence, here with x = 2p - 1.
    """
    k = np.arange(1.0, QUADRATURE_NODES)
    alpha, beta = (b - 1)[:, None], (a - 1)[:, None]
    total = alpha + beta
    matrix = np.zeros((len(a), QUADRATURE_NODES, QUADRATURE_NODES))
    rows = np.arange(QUADRATURE_NODES)
    matrix[:, 0, 0] = (a - b) / (a + b)
    matrix[:, rows[1:], rows[1:]] = (beta**2 - alpha**2) / ((2 * k + total) * (2 * k + total + 2))
    # the factors (k + total) / (2 k + total - 1) cancel at k = 1, where both may be zero
    ratio = np.ones((len(a), len(k)))
    ratio[:, 1:] = (k[1:] + total) / (2 * k[1:] + total - 1)
    squares = 4 * k * (k + alpha) * (k + beta) * ratio / ((2 * k + total) ** 2 * (2 * k + total + 1))
    matrix[:, rows[1:], rows[:-1]] = np.sqrt(squares)  # eigh reads the lower triangle
    values, vectors = np.linalg.eigh(matrix)
    weights = vectors[:, 0, :] ** 2
    return np.clip((values + 1) / 2, 0.0, 1.0), weights / weights.sum(axis=1, keepdims=True)
