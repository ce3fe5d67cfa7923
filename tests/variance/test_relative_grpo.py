"""What std-normalised GRPO is allocated by: the derivation, the guard that judges it, the groups that stay alive."""

from __future__ import annotations

import numpy as np
import pytest

from viprl import AllocationSettings, PromptSet, build_allocator
from viprl.prediction.base import Prediction
from viprl.variance import GRPO, RLOO, RelativeGRPO
from viprl.variance.grpo import expect_counts

SIZES = np.arange(2, 65)
RATES = np.concatenate([[1e-4, 1e-3], np.linspace(0.01, 0.99, 99)])


def signal(n):
    """(n+1,) (n-1)/n s at k = 0..n successes."""
    k = np.arange(n + 1)
    return np.sqrt((n - 1) / n) * np.sqrt(k * (n - k)) / n


def scaled(p, sizes):
    """(B, K) variance of GRPO's estimate, scaled to the gradient of the success rate in expectation."""
    point = Prediction.point(p)
    m = expect_counts(point, sizes, signal)
    return GRPO(epsilon=0.0).curve(point, sizes) * (point.bernoulli_variance[:, None] / m) ** 2


def test_the_scaled_variance_is_rloos_within_a_few_per_cent():
    excess = scaled(RATES, SIZES) / RelativeGRPO().curve(Prediction.point(RATES), SIZES)
    assert excess.min() >= 1 - 1e-9, "Cauchy-Schwarz"
    assert np.allclose(excess[:, :2], 1), "equality at n = 2 and 3, where every live group has the same deviation"
    assert np.allclose(excess[0], 1, atol=0.005), "and for rare successes"
    most = dict(zip(SIZES.tolist(), excess.max(axis=0).round(3).tolist(), strict=True))
    assert (most[8], most[16], most[64]) == (1.026, 1.047, 1.067)


def test_scaled_to_its_own_limit_no_prompt_is_noisier_than_another():
    own = scaled(RATES, SIZES) / (RATES * (1 - RATES))[:, None] * (SIZES - 1)
    assert 0.999 < own.min() and own.max() < 1.07


def draws(kind, rng, shape):
    if kind == "gaussian":
        return rng.standard_normal(shape, dtype=np.float32)
    if kind == "gamma":
        return rng.gamma(4.0, 0.5, shape)  # variance 1
    return (rng.random(shape, dtype=np.float32) < kind).astype(np.float32)


def normalised(rewards):
    """Straight from the definition."""
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    deviation = rewards.std(axis=1, ddof=1, keepdims=True)
    return np.divide(centred, deviation, out=np.zeros_like(centred), where=deviation > 0)


@pytest.mark.parametrize(
    ("kind", "n", "excess"),
    # Gaussian: E[s] = c_4 sigma with c_4 = .9650 at n = 8
    [(0.5, 3, 1.0), (0.1, 8, None), (0.4, 8, None), (0.9, 16, None), ("gaussian", 8, 1 / 0.9650**2)],
)
def test_signal_and_noise_agree_with_monte_carlo(kind, n, excess):
    """Scores b R + e: the estimate's mean per b is the signal, its variance around it the noise."""
    rng, slope = np.random.default_rng(n), np.float32(5.0)
    rewards = draws(kind, rng, (1_000_000, n))
    own = rng.standard_normal(rewards.shape, dtype=np.float32)
    advantages = normalised(rewards)
    m = (advantages * (slope * rewards + own)).mean(axis=1).mean(dtype=np.float64) / slope
    v = (advantages * own).mean(axis=1).var(dtype=np.float64)
    truth = 1.0 if kind == "gaussian" else kind * (1 - kind)
    expected = scaled([kind], [n])[0, 0] if excess is None else excess * truth / (n - 1)
    assert v * (truth / m) ** 2 == pytest.approx(expected, rel=0.01)


def test_skewed_rewards_stay_near_the_bound():
    rng = np.random.default_rng(0)
    deviations = draws("gamma", rng, (200_000, 8)).std(axis=1, ddof=1)
    assert 1 < 1 / deviations.mean() ** 2 < 1.12


def test_it_is_rloos_curve_under_grpos_name():
    model, weights = RelativeGRPO(), [0.25, 0.0, 0.04]
    assert (model.name, model.convex_from) == ("grpo", 1)
    assert np.array_equal(model.curve(weights, SIZES), RLOO().curve(weights, SIZES))


class World:
    """Prompts whose success rates rise slowly; a third of them dead."""

    def __init__(self, seed: int, prompts: int = 192) -> None:
        self.rng = np.random.default_rng(seed)
        self.ids = [f"q{i}" for i in range(prompts)]
        self.level = self.rng.normal(-1.0, 1.8, prompts)
        self.level[: prompts // 3] = -np.inf

    def rates(self, rows):
        return 1 / (1 + np.exp(-self.level[rows]))

    def run(self, estimator: str, group_size: int, steps: int = 48, batch: int = 32):
        """Steps on which the policy's groups were used, realised ratios, live groups expected and with uniform ones."""
        settings = AllocationSettings(estimator=estimator, predictor="discounted_beta", variance="formula")
        settings = settings.for_step(batch, batch * group_size)
        allocator = build_allocator(PromptSet(self.ids), settings)
        used, ratios, live = [], [], np.zeros(2)
        order = np.concatenate([self.rng.permutation(len(self.ids)) for _ in range(steps)])
        for rows in order[: steps * batch].reshape(steps, batch):
            plan = allocator.allocate([self.ids[i] for i in rows], batch * group_size)
            p = self.rates(rows)
            rewards = [(self.rng.random(n) < rate).astype(float) for rate, n in zip(p, plan.group_sizes, strict=True)]
            allocator.observe(plan, rewards)
            used.append(not plan.guard_holding)
            ratios.append(allocator.metrics()["viprl/realised_variance_ratio"])
            live += [(1 - p**n - (1 - p) ** n).sum() for n in (plan.group_sizes, plan.uniform_sizes)]
            self.level += 0.01
        return np.array(used), np.array(ratios), live[0] / live[1]


@pytest.mark.parametrize("group_size", [4, 8, 16])
def test_the_policys_groups_are_used_and_keep_groups_alive(group_size):
    found = [World(seed).run("grpo", group_size) for seed in range(4)]
    used = np.mean([share[1:].mean() for share, _, _ in found])
    realised = np.mean([ratios[-16:].mean() for _, ratios, _ in found])
    live = np.mean([ratio for _, _, ratio in found])
    assert used > 0.8 and realised <= 1.02 and live >= 0.98, (used, realised, live)


def test_real_rewards_run():
    """A dense reward has a variance to allocate by, and no success to count."""
    rng = np.random.default_rng(0)
    ids = [f"q{i}" for i in range(12)]
    spread = np.where(np.arange(12) < 6, 0.02, 1.0)
    settings = AllocationSettings(estimator="grpo", predictor="reward_variance").for_step(12, 96)
    allocator = build_allocator(PromptSet(ids), settings)
    for _ in range(12):
        plan = allocator.allocate(ids, 96)
        allocator.observe(plan, [rng.normal(0.5, s, n) for s, n in zip(spread, plan.group_sizes, strict=True)])
    plan = allocator.allocate(ids, 96)
    assert plan.group_sizes[6:].min() > plan.group_sizes[:6].max()
    assert not plan.guard_holding and allocator.metrics()["viprl/realised_variance_ratio"] < 0.9
