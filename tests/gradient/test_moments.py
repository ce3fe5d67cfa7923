"""The U-statistic's variance against populations where it is known, and against brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from viprl.errors import InvalidInputError
from viprl.gradient.moments import group_moments, outcome_means, variance_curve


def population(seed: int = 0):
    """Eight equally likely rollouts with correlated rewards and gradients in five dimensions."""
    rng = np.random.default_rng(seed)
    rewards = np.array([0, 0, 0, 1, 0, 1, 0, 0.0])
    gradients = rng.normal(size=(8, 5)) * (1 + 3 * rewards[:, None]) + rewards[:, None]
    return rewards, gradients


def estimates(rewards, gradients, estimator: str):
    """Estimator of the prompt's gradient for draws (M, n)."""
    n = rewards.shape[1]
    mean = rewards.mean(1, keepdims=True)
    advantage = rewards - mean if estimator == "dr_grpo" else (rewards - mean) * n / (n - 1)
    return (advantage[..., None] * gradients).mean(1)


def truth(n: int, estimator: str) -> float:
    """Exact variance by enumerating every draw of n rollouts from the population."""
    rewards, gradients = population()
    draws = np.array(list(itertools.product(range(8), repeat=n)))
    values = estimates(rewards[draws], gradients[draws], estimator)
    return float(((values - values.mean(0)) ** 2).sum(1).mean())


def constants() -> tuple[float, float]:
    rewards, h = population()
    centred = (rewards - rewards.mean())[:, None] * (h - h.mean(0))
    v1 = ((centred - centred.mean(0)) ** 2).sum(1).mean()
    kernel = (rewards[:, None] - rewards)[..., None] * (h[:, None] - h) / 2
    v2 = ((kernel - kernel.mean((0, 1))) ** 2).sum(-1).mean()
    return float(v1), float(v2)


@pytest.mark.parametrize("estimator", ["rloo", "dr_grpo"])
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_curve_is_exact(n: int, estimator: str) -> None:
    assert variance_curve(*constants(), n, estimator) == pytest.approx(truth(n, estimator), rel=1e-10)


def test_moments_are_unbiased() -> None:
    rng = np.random.default_rng(1)
    rewards, gradients = population()
    v1, v2 = constants()
    centred = ((rewards - rewards.mean())[:, None] * gradients).mean(0)
    found = []
    for _ in range(6000):
        draw = rng.integers(0, 8, 6)
        moments = group_moments(rewards[draw], gradients[draw] @ gradients[draw].T)
        found.append((moments.v1, moments.v2, moments.signal, moments.mean_reward))
    found = np.array(found)
    error = found.std(0) / np.sqrt(len(found))
    expected = np.array([v1, v2, centred @ centred, rewards.mean()])
    assert (np.abs(found.mean(0) - expected) < 4 * error).all(), (found.mean(0), expected, error)


def test_tuple_means_equal_enumeration() -> None:
    """The O(N^2) sums against loops over all tuples of different rollouts."""
    rng = np.random.default_rng(2)
    r, h = rng.integers(0, 2, 6).astype(float), rng.normal(size=(6, 4))
    kernel = (r[:, None] - r)[..., None] * (h[:, None] - h) / 2
    pairs = np.mean([kernel[i, j] @ kernel[i, j] for i, j in itertools.permutations(range(6), 2)])
    triples = np.mean([kernel[i, j] @ kernel[i, k] for i, j, k in itertools.permutations(range(6), 3)])
    quads = np.mean([kernel[i, j] @ kernel[k, m] for i, j, k, m in itertools.permutations(range(6), 4)])
    moments = group_moments(r, h @ h.T)
    assert (moments.v1, moments.v2, moments.signal) == pytest.approx((4 * (triples - quads), pairs - quads, quads))


@pytest.mark.parametrize("estimator", ["rloo", "dr_grpo"])
def test_one_pool_agrees_with_brute_force(estimator: str) -> None:
    """Jackknife intervals (2 s.e.) cover the true variance of n = 2, 4, 8 about as often as they should."""
    rng = np.random.default_rng(3)
    rewards, gradients = population()
    sizes = np.array([2, 4, 8])
    expected = variance_curve(*constants(), sizes, estimator)
    covered = []
    for _ in range(300):
        draw = rng.integers(0, 8, 40)
        moments = group_moments(rewards[draw], gradients[draw] @ gradients[draw].T)
        covered.append(
            np.abs(moments.variance(sizes, estimator) - expected) < 2 * moments.standard_error(sizes, estimator)
        )
    share = np.mean(covered, axis=0)
    assert (share > 0.85).all() and (share < 1).all(), share


def test_outcome_means() -> None:
    r = np.array([1, 1, 0, 0, 0.0])
    h = np.array([[2, 0], [2, 2], [0, 1], [0, 1], [0, 1.0]])
    means = outcome_means(r, h @ h.T)
    assert (means.s_plus, means.s_minus) == (6, 1)
    assert means.difference == pytest.approx(4 + 1 - 2 * 1)  # <h1, h2> + 1 - 2 <mean+, mean->
    assert means.correlation == pytest.approx(np.corrcoef(r, [2, 8**0.5, 1, 1, 1])[0, 1])


def test_refusals() -> None:
    with pytest.raises(InvalidInputError, match="at least 5"):
        group_moments(np.ones(4), np.eye(4))
    with pytest.raises(InvalidInputError, match="n >= 2"):
        variance_curve(1, 1, 1)
    with pytest.raises(InvalidInputError, match="estimator must be one of"):
        variance_curve(1, 1, 4, "grpo")
