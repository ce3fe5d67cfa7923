"""The learned variance model on worlds whose gradients are known."""

from __future__ import annotations

import numpy as np
import pytest

from viprl.allocation import VIP, Uniform, solve_allocation
from viprl.errors import CheckpointError, InvalidInputError
from viprl.prediction import DiscountedBeta
from viprl.prediction.base import Prediction
from viprl.variance.outcome_moments import OutcomeMoments
from viprl.variance.outcome_moments_groups import GroupSummary


class World:
    """Prompts with success rates p and squared norms z with mean s+ (p) or s- (p) times the prompt's own factor."""

    def __init__(self, prompts: int, *, slope: float, own: float = 0.0, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.p = self.rng.beta(0.8, 0.8, prompts)
        logit = np.log(self.p / (1 - self.p)).clip(-5, 5)
        factor = np.exp(self.rng.normal(0, own, prompts)) if own else np.ones(prompts)
        self.s_plus = 7 * np.exp(-slope * logit) * factor
        self.s_minus = 7 * np.exp(slope * logit) * factor
        self.ids = [f"q{i}" for i in range(prompts)]

    def v1(self) -> np.ndarray:
        p = self.p
        return p * (1 - p) ** 2 * self.s_plus + p**2 * (1 - p) * self.s_minus

    def rollouts(self, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        owner = np.repeat(np.arange(len(sizes)), sizes)
        rewards = (self.rng.random(len(owner)) < self.p[owner]).astype(float)
        mean = np.where(rewards == 1, self.s_plus[owner], self.s_minus[owner])
        return rewards, mean * self.rng.gamma(2.0, 0.5, len(owner))


def run(world: World, model: OutcomeMoments, steps: int, n: int = 8, batch: int = 64) -> DiscountedBeta:
    """Uniform rollouts of random batches; the model sees norms of groups with both outcomes alone."""
    predictor = DiscountedBeta(world.ids)
    for _ in range(steps):
        rows = world.rng.choice(len(world.ids), min(batch, len(world.ids)), replace=False)
        sizes = np.zeros(len(world.ids), int)
        sizes[rows] = n
        rewards, norms = world.rollouts(sizes)
        counts = rewards.reshape(-1, n).sum(1)
        dead = np.repeat((counts == 0) | (counts == n), n)
        order = np.sort(rows)
        ids = [world.ids[i] for i in order]
        prediction = predictor.predict(ids)
        model.learn(ids, prediction, sizes[order], rewards, np.where(dead, np.nan, norms))
        predictor.observe(ids, counts, np.full(len(ids), n))
    return predictor


def measured_ratio(world: World, sizes: np.ndarray) -> float:
    v1 = world.v1()
    return float((v1 / (sizes - 1)).sum() / (v1 / (sizes.mean() - 1)).sum())


def allocate(model, prediction, budget):
    return solve_allocation(model, prediction, budget, 3, 32)


def test_without_data_it_is_the_papers_formula() -> None:
    prediction = Prediction.beta([1.0, 2.0, 5.0], [1.0, 1.0, 2.0])
    model = OutcomeMoments()
    sizes = np.arange(2, 12)
    expected = prediction.bernoulli_variance[:, None] / (sizes - 1)
    np.testing.assert_allclose(model.curve(prediction, sizes), expected)
    np.testing.assert_allclose(model.bind(["a", "b", "c"]).curve(prediction, sizes), expected)


def test_curves_are_found() -> None:
    world = World(200, slope=0.6)
    model = OutcomeMoments()
    predictor = run(world, model, 40)
    inside = (world.p > 0.05) & (world.p < 0.95)
    first, second = model.moments(Prediction.point(world.p), world.ids)
    truth = world.v1()
    ratio = (first / truth)[inside]
    ratio /= np.exp(np.log(ratio).mean())
    assert np.abs(np.log(ratio)).mean() < 0.15
    # V2 = p(1-p)(s+ + s-)/2 in the same units
    second_truth = world.p * (1 - world.p) * (world.s_plus + world.s_minus) / 2
    np.testing.assert_allclose((second / first)[inside], (second_truth / truth)[inside], rtol=0.5)
    assert model.trust.blend > 0
    ids = world.ids
    prediction = predictor.predict(ids)
    learned = measured_ratio(world, allocate(model.bind(ids), prediction, 8 * len(ids)))
    assert learned < 1.0


@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0])
def test_never_worse_than_the_paper_or_uniform(slope: float) -> None:
    """Mean over three worlds of the true variance ratio; slope 1 makes the paper's formula worse than uniform."""
    from viprl.variance import RLOO

    learned, paper = [], []
    for seed in range(3):
        world = World(128, slope=slope, own=0.5, seed=seed)
        model = OutcomeMoments()
        prediction = run(world, model, 30).predict(world.ids)
        budget = 8 * len(world.ids)
        learned.append(measured_ratio(world, allocate(model.bind(world.ids), prediction, budget)))
        paper.append(measured_ratio(world, allocate(RLOO(), prediction, budget)))
    assert np.mean(learned) <= np.mean(paper) + 0.01
    assert np.mean(learned) <= 1.02
    if slope == 1.0:
        assert np.mean(paper) > 1.0 and np.mean(learned) < np.mean(paper) - 0.02


def test_own_factors_are_learnt_and_shrunk() -> None:
    """With strong own factors predictions correlate with the truth beyond the curve; without, they stay near one."""
    strong, none = World(100, slope=0.0, own=1.0), World(100, slope=0.0)
    found = {}
    for name, world in (("strong", strong), ("none", none)):
        model = OutcomeMoments()
        run(world, model, 40)
        factors = model._factors.predict(world.ids)
        found[name] = factors.mean(1)
    assert np.corrcoef(np.log(found["strong"]), np.log(strong.s_plus))[0, 1] > 0.6
    assert np.std(np.log(found["none"])) < 0.3 * np.std(np.log(found["strong"]))


def test_unbiased_v1() -> None:
    world = World(40, slope=0.4, seed=3)
    sizes = np.full(40, 5)
    total, rounds = np.zeros(40), 1500
    squares = np.zeros(40)
    for _ in range(rounds):
        rewards, norms = world.rollouts(sizes)
        value = GroupSummary.of(sizes, rewards, norms).unbiased_v1()
        total += value
        squares += value**2
    error = np.sqrt(squares / rounds - (total / rounds) ** 2) / np.sqrt(rounds)
    assert (np.abs(total / rounds - world.v1()) < 4.5 * error + 1e-12).all()


@pytest.mark.parametrize("estimator", ["rloo", "dr_grpo"])
def test_curves_are_convex_where_they_say_so(estimator: str) -> None:
    world = World(150, slope=1.0, own=1.0)
    model = OutcomeMoments(estimator=estimator, margin=0.0)
    prediction = run(world, model, 30).predict(world.ids)
    bound = model.bind(world.ids)
    sizes = np.arange(bound.convex_from, 40)
    for values in (bound.curve(prediction, sizes), model.curve(prediction, sizes)):
        gains = -np.diff(values, axis=1)
        assert (gains >= -1e-12 * values[:, :1]).all()
        assert (np.diff(gains, axis=1) <= 1e-12 * values[:, :1]).all()


def test_extreme_curves_are_convex_from_the_stated_size() -> None:
    """The two rays that bound all (V1, V2): V2 = V1 / 2 and V1 = 0."""
    for estimator, start in (("rloo", 2), ("dr_grpo", 4)):
        n = np.arange(start, 200)[None, :].astype(float)
        model = OutcomeMoments(estimator=estimator)
        values = model.value_at(np.array([[1.0], [0.0]]), np.array([[0.5], [1.0]]), n)
        gains = -np.diff(values, axis=1)
        assert (gains >= 0).all() and (np.diff(gains, axis=1) <= 1e-15).all()


def test_policies_accept_it_and_are_pure() -> None:
    world = World(30, slope=0.5)
    model = OutcomeMoments(margin=0.0)
    prediction = run(world, model, 10).predict(world.ids)
    before = repr(model.state_dict())
    bound = model.bind(world.ids)
    options = {"model": bound, "budget": 240, "min_group_size": 3, "max_group_size": 20}
    for policy in (VIP(), Uniform()):
        sizes = policy.allocate(prediction, **options)
        assert sizes.sum() == 240
        np.testing.assert_array_equal(sizes, policy.allocate(prediction, **options))
    assert repr(model.state_dict()) == before


def test_state_round_trip_continues_bit_for_bit() -> None:
    world = World(50, slope=0.5, own=0.5)
    one, two = OutcomeMoments(), OutcomeMoments()
    predictor = run(world, one, 12)
    two.load_state_dict(one.state_dict())
    prediction = predictor.predict(world.ids)
    sizes = np.full(50, 4)
    rewards, norms = world.rollouts(sizes)
    for model in (one, two):
        model.learn(world.ids, prediction, sizes, rewards, norms)
    for a, b in zip(one.moments(prediction, world.ids), two.moments(prediction, world.ids), strict=True):
        np.testing.assert_array_equal(a, b)
    assert one.metrics() == two.metrics()
    with pytest.raises(CheckpointError, match="settings"):
        OutcomeMoments(keep=0.5).load_state_dict(one.state_dict())


def test_units_do_not_matter() -> None:
    models = []
    for unit in (1.0, 1e8):
        world = World(60, slope=0.7, seed=4)
        world.s_plus, world.s_minus = world.s_plus * unit, world.s_minus * unit
        model = OutcomeMoments()
        predictor = run(world, model, 15)
        models.append(model.constants(predictor.predict(world.ids), world.ids))
    for a, b in zip(*models, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_missing_rewards_dead_batches_and_refusals() -> None:
    model = OutcomeMoments()
    prediction = Prediction.point([0.5, 0.5])
    nan = np.nan
    model.learn(["a", "b"], prediction, [3, 2], [1, 1, 1, 0, 0], np.full(5, nan))  # a dead batch: no news
    assert model.moments(prediction)[0] == pytest.approx(0.25)
    model.learn(["a", "b"], prediction, [3, 2], [1, nan, 0, -1, 1], [4.0, 9.0, 4.0, 4.0, 4.0])
    assert np.isfinite(model.moments(prediction, ["a", "b"])).all()
    before = repr(model.state_dict())
    for bad, message in (
        ((["a"], prediction, [3, 2], np.ones(5), np.ones(5)), "one batch"),
        ((["a", "b"], prediction, [3, 2], np.ones(4), np.ones(4)), "one entry per rollout"),
        ((["a", "b"], prediction, [3, 2], np.full(5, 0.3), np.ones(5)), "binary"),
        ((["a", "b"], prediction, [3, 2], np.ones(5), -np.ones(5)), "non-negative"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            model.learn(*bad)
    assert repr(model.state_dict()) == before
    with pytest.raises(InvalidInputError, match="estimator"):
        OutcomeMoments(estimator="grpo")
    with pytest.raises(InvalidInputError, match="need a Prediction"):
        model.moments(np.array([0.2]))


def test_in_the_allocator() -> None:
    """Plans use the prompts' own factors, state and metrics travel with the allocator, and plans continue exactly."""
    from viprl.allocator import RolloutAllocator

    world = World(40, slope=0.8, own=0.5, seed=5)
    make = lambda: RolloutAllocator(DiscountedBeta(world.ids), OutcomeMoments(margin=0.0), max_group_size=20)  # noqa: E731
    allocator = make()
    for _ in range(12):
        plan = allocator.allocate(world.ids, 320)
        rewards, norms = world.rollouts(plan.group_sizes)
        allocator.observe(plan, rewards, squared_norms=norms)
    copy = make()
    copy.load_state_dict(allocator.state_dict())
    one, two = (a.allocate(world.ids, 320) for a in (allocator, copy))
    np.testing.assert_array_equal(one.group_sizes, two.group_sizes)
    assert "viprl/learned_variance_ratio" in allocator.metrics()
    prediction = allocator.predict(world.ids)
    bound = allocator.model.bind(world.ids)
    np.testing.assert_allclose(one.variance, bound.variance(prediction, one.group_sizes))


def test_state_survives_the_checkpoint_file(tmp_path) -> None:
    from viprl.allocator import RolloutAllocator

    world = World(20, slope=0.5)
    allocator = RolloutAllocator(DiscountedBeta(world.ids), OutcomeMoments())
    plan = allocator.allocate(world.ids, 160)
    rewards, norms = world.rollouts(plan.group_sizes)
    allocator.observe(plan, rewards)
    allocator.observe_norms(plan, norms)
    allocator.save(tmp_path / "state")
    again = RolloutAllocator.load(tmp_path / "state", DiscountedBeta(world.ids), OutcomeMoments())
    for a, b in zip(
        allocator.model.moments(plan.prediction, world.ids),
        again.model.moments(plan.prediction, world.ids),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
