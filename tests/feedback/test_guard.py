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


def harmful(guard: Guard, steps: int, rng: np.random.Generator, loud: dict[int, float]) -> list[bool]:
    """A policy at 1.5 times uniform's variance; some steps are louder than the others."""
    held = []
    for step in range(steps):
        uniform = rng.gamma(4.0, 1.0, 16) * loud.get(step, 1.0)
        values = np.stack([1.5 * uniform * rng.uniform(0.8, 1.2, 16), uniform])
        guard.update(values, 0.01 * values[:, None] * values[None])
        held.append(guard.holding)
    return held


@pytest.mark.parametrize("factor", [1e3, 1e6, 1e50])
def test_one_loud_step_drowns_the_others_for_no_longer_than_its_share(factor: float) -> None:
    """The loud step's own rollouts favour the policy; the guard must still find out what the others say."""
    guard = Guard()
    rng = np.random.default_rng(0)
    good = np.stack([np.full(16, 0.3), np.ones(16)]) * factor
    for _ in range(5):
        harmful(guard, 1, rng, {})
    guard.update(good, 0.01 * good[:, None] * good[None])
    assert harmful(guard, 30, rng, {})[-1] and guard.state().ratio > 1


@pytest.mark.parametrize("factor", [1e160, 1e300])
def test_numbers_beyond_any_scale_leave_the_guard_as_it_was(factor: float) -> None:
    guard, other = Guard(), Guard()
    for each in (guard, other):
        harmful(each, 5, np.random.default_rng(0), {})
    with np.errstate(all="ignore"):
        wild = np.full((2, 16), factor)
        guard.update(wild, wild[:, None] * wild[None] * factor)
    for name, value in other.state_dict().items():
        np.testing.assert_array_equal(guard.state_dict()[name], value)
    assert np.isfinite(guard.state().standard_error)


def test_ordinary_steps_are_never_made_quieter() -> None:
    guard = Guard()
    rng = np.random.default_rng(1)
    sums = np.zeros(2)
    for _ in range(40):
        values = rng.gamma(0.3, 1.0, (2, 16))
        guard.update(values, 0 * values[:, None] * values[None])
        sums = guard.keep * sums + values.sum(axis=1)
    np.testing.assert_allclose(guard.state_dict()["sums"][:2], sums)
