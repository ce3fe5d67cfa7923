"""The guard's estimate is unbiased, and it holds when it should."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from viprl.feedback.guard import Guard
from viprl.feedback.rewards import read_rewards


def rloo(n: np.ndarray) -> np.ndarray:
    return 1 / (n - 1)


def tell(guard: Guard, a: np.ndarray, policy: np.ndarray, uniform: np.ndarray, noise: np.ndarray | None = None) -> None:
    """One step, measured as RLOO measures it."""
    factors = rloo(np.stack([policy, uniform]))
    spread = a**2 if noise is None else noise
    unequal = not np.array_equal(policy, uniform)
    guard.update(a * factors, spread * factors[:, None] * factors[None], unequal=unequal)


def noise_of(k: np.ndarray, n: np.ndarray) -> np.ndarray:
    groups = [np.r_[np.ones(int(a)), np.zeros(int(b - a))] for a, b in zip(k, n, strict=True)]
    return read_rewards(groups, n.astype(int)).noise


def a_hat(rng: np.random.Generator, p: np.ndarray, n: np.ndarray) -> np.ndarray:
    k = rng.binomial(n, p)
    return k * (n - k) / (n * (n - 1))


def test_ratio_is_unbiased_whatever_groups_were_used() -> None:
    rng = np.random.default_rng(0)
    p = rng.beta(0.5, 0.5, 4000)
    used = rng.integers(2, 12, len(p))
    policy, uniform = rng.integers(2, 20, len(p)), np.full(len(p), 8)
    guard = Guard(keep=1.0)
    for _ in range(100):
        tell(guard, a_hat(rng, p, used), policy, uniform)
    truth = (p * (1 - p) * rloo(policy)).sum() / (p * (1 - p) * rloo(uniform)).sum()
    state = guard.state()
    assert abs(state.ratio - truth) < 4 * state.standard_error
    assert state.standard_error < 0.02


def test_standard_error_is_that_of_the_rollouts() -> None:
    rng = np.random.default_rng(1)
    p = rng.uniform(0, 1, 300)
    used, policy, uniform = rng.integers(4, 16, len(p)), rng.integers(3, 20, len(p)), np.full(len(p), 8)
    ratios, errors = [], []
    for _ in range(400):
        guard = Guard(keep=1.0)
        for rows in np.split(np.arange(len(p)), 3):
            n = used[rows]
            k = rng.binomial(n, p[rows])
            a = k * (n - k) / (n * (n - 1))
            tell(guard, a, policy[rows], uniform[rows], noise_of(k, n))
        ratios.append(guard.state().ratio)
        errors.append(guard.state().standard_error)
    assert np.mean(errors) == pytest.approx(np.std(ratios), rel=0.2)


def test_noise_is_unbiased_by_enumeration() -> None:
    for n in range(4, 9):
        k = np.arange(n + 1.0)
        a = k * (n - k) / (n * (n - 1))
        for p in (0.1, 0.5, 0.83):
            weight = stats.binom.pmf(k, n, p)
            truth = weight @ a**2 - (weight @ a) ** 2
            assert weight @ noise_of(k, np.full(n + 1, n)) == pytest.approx(truth, abs=1e-12)


def test_holds_under_a_harmful_policy_and_lets_go_when_it_recovers() -> None:
    rng = np.random.default_rng(2)
    p = np.concatenate([np.full(64, 0.5), np.full(64, 0.02)])
    n = np.full(128, 8)
    bad = np.concatenate([np.full(64, 3), np.full(64, 13)])
    good = bad[::-1].copy()
    guard = Guard()
    for _ in range(3):
        tell(guard, a_hat(rng, p, n), bad, n)
    assert guard.holding
    for _ in range(60):
        tell(guard, a_hat(rng, p, n), good, n)
    assert not guard.holding


def test_dead_batches_and_short_groups_say_nothing() -> None:
    guard = Guard()
    n = np.full(4, 8)
    tell(guard, np.zeros(4), n, n)
    tell(guard, np.full(4, np.nan), n, n)
    assert guard.state().ratio == 1.0
    assert not guard.holding


def test_cold_batches_wait_for_a_first_measurement() -> None:
    guard, n = Guard(), np.full(4, 8)
    unequal = np.array([7, 9, 8, 8])
    assert guard.replaces(cold_share=1.0) and not guard.replaces(cold_share=0.2)
    tell(guard, np.full(4, 0.2), n, n)
    assert guard.replaces(cold_share=1.0)  # equal groups measured nothing
    tell(guard, np.full(4, 0.2), np.array([9, 7, 8, 8]), n)
    tell(guard, np.array([0.01, 0.24, 0.1, 0.1]), unequal, n)
    assert guard.tested and not guard.holding and not guard.replaces(cold_share=1.0)
    other = Guard()
    other.load_state_dict(guard.state_dict())
    assert other.state() == guard.state() and other.tested
