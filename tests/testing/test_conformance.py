"""The shipped objects against the shipped suites, and the suites against objects that break a promise."""

from __future__ import annotations

import numpy as np
import pytest

from viprl.allocation import VIP, InverseAccuracy, InverseVariance, KnapsackRL, Relaxed, Uniform, solve_allocation
from viprl.prediction import (
    CalibratedPredictor,
    DiscountedBeta,
    GaussianProcessPredictor,
    GlobalMean,
    LastRate,
    MovingAverage,
    RewardVariancePredictor,
    Ridge,
)
from viprl.testing import PolicyConformance, PredictorConformance, SolverConformance, VarianceModelConformance
from viprl.variance import GRPO, RLOO, DrGRPO, RelativeGRPO

EMBEDDINGS = np.random.default_rng(5).normal(size=(24, 6)).astype(np.float32)


class TestDiscountedBeta(PredictorConformance):
    def make(self):
        return DiscountedBeta()


class TestDiscountedBetaFixed(PredictorConformance):
    def make(self):
        return DiscountedBeta(self.prompt_ids)


class TestLastRate(PredictorConformance):
    def make(self):
        return LastRate()


class TestGlobalMean(PredictorConformance):
    def make(self):
        return GlobalMean()


class TestMovingAverage(PredictorConformance):
    def make(self):
        return MovingAverage()


class TestRidge(PredictorConformance):
    def make(self):
        return Ridge(EMBEDDINGS, prompt_ids=self.prompt_ids)


class TestGaussianProcess(PredictorConformance):
    def make(self):
        return GaussianProcessPredictor(EMBEDDINGS, prompt_ids=self.prompt_ids)


class TestCalibrated(PredictorConformance):
    def make(self):
        return CalibratedPredictor(EMBEDDINGS, prompt_ids=self.prompt_ids)


class TestCalibratedWithoutText(PredictorConformance):
    def make(self):
        return CalibratedPredictor(None, prompt_ids=self.prompt_ids)


class TestRewardVariance(PredictorConformance):
    def make(self):
        return RewardVariancePredictor(EMBEDDINGS, prompt_ids=self.prompt_ids)


class TestCalibratedWithTextsAndSideInformation(PredictorConformance):
    def make(self):
        texts = [f"What is {i} times {i + 1}?" for i in range(24)]
        rates = np.where(np.arange(24) % 3 == 0, np.nan, np.linspace(0, 1, 24))
        return CalibratedPredictor(
            EMBEDDINGS, prompt_ids=self.prompt_ids, texts=texts, side_information={"other_rate": rates}
        )


class TestRLOO(VarianceModelConformance):
    def make(self):
        return RLOO()


class TestDrGRPO(VarianceModelConformance):
    def make(self):
        return DrGRPO()


@pytest.mark.parametrize("settings", [{}, {"ddof": 0}, {"epsilon": 0.0}, {"epsilon": 0.5, "reward_range": 2.0}])
class TestGRPO(VarianceModelConformance):
    @pytest.fixture(autouse=True)
    def _settings(self, settings):
        self.settings = settings

    def make(self):
        return GRPO(**self.settings)


class TestRelativeGRPO(VarianceModelConformance):
    def make(self):
        return RelativeGRPO()


MODELS = {"rloo": RLOO(), "dr_grpo": DrGRPO(), "grpo": RelativeGRPO(), "grpo's own": GRPO()}


@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("policy", [VIP, Uniform, InverseAccuracy, InverseVariance, KnapsackRL])
class TestPolicies(PolicyConformance):
    trials = 8

    @pytest.fixture(autouse=True)
    def _choose(self, policy, model_name):
        self.policy, self.chosen = policy, MODELS[model_name]
        self.ties = 1 if policy is Uniform else 0

    def make(self):
        return self.policy()

    def model(self):
        return self.chosen


class TestVIPFromOne(PolicyConformance):
    smallest = 1

    def make(self):
        return VIP()


@pytest.mark.parametrize("model_name", ["rloo", "dr_grpo"])
class TestRelaxed(PolicyConformance):
    @pytest.fixture(autouse=True)
    def _choose(self, model_name):
        self.chosen = MODELS[model_name]

    def make(self):
        return Relaxed()

    def model(self):
        return self.chosen


class TestSolver(SolverConformance):
    def solve(self, *args, **kwargs):
        return solve_allocation(*args, **kwargs)


def broken(suite, **methods):
    """The suite on an object with some methods replaced by faulty ones; the tests that fail."""
    instance = suite()
    original = instance.make

    def make():
        made = original()
        for name, method in methods.items():
            setattr(made, name, method.__get__(made))
        return made

    instance.make = make
    failed = set()
    for name in dir(instance):
        if name.startswith("test_"):
            try:
                getattr(instance, name)()
            except Exception:  # whatever a faulty object raises is a failed test
                failed.add(name)
    return failed


def test_suites_catch_faulty_predictors():
    def forgetful(self):
        return {"kind": "DiscountedBeta"}

    def plug_in(self, ids):
        p = DiscountedBeta.predict(self, ids)
        return type(p)(p.mean, p.mean * (1 - p.mean) + 0.1, quadrature=p._quadrature, cold=p.cold)

    def learning(self, ids):
        result = DiscountedBeta.predict(self, ids)
        DiscountedBeta.observe(self, [ids[0]], [1], [1])
        return result

    assert not broken(TestDiscountedBeta)
    assert "test_state_round_trip_continues_bit_for_bit" in broken(TestDiscountedBeta, state_dict=forgetful)
    assert "test_predictions_are_probabilities" in broken(TestDiscountedBeta, predict=plug_in)
    assert "test_predict_is_pure" in broken(TestDiscountedBeta, predict=learning)


def test_suites_catch_faulty_models_and_policies():
    def rising(self, prediction, sizes):
        return RLOO.weight(self, prediction)[:, None] * np.asarray(sizes, float)[None, :]

    def greedy_for_one(self, prediction, *, model, budget, min_group_size, max_group_size, scale=None):
        sizes = np.full(len(prediction), np.min(min_group_size), dtype=np.int64)
        sizes[:1] += budget - sizes.sum()
        return sizes

    assert not broken(TestRLOO)
    assert {"test_curve_and_points_agree", "test_convex_from_is_true"} <= broken(TestRLOO, curve=rising)
    assert {
        "test_spends_the_budget_within_the_bounds",
        "test_order_of_the_prompts_does_not_matter",
        "test_impossible_budgets_are_errors",
    } <= broken(TestVIPFromOne, allocate=greedy_for_one)


def test_solver_suite_catches_rounding_instead_of_solving():
    class Uniformly(SolverConformance):
        trials = 10

        def make(self):
            return None

        def solve(self, model, prediction, budget, lower, upper, scale=None, cost=None):
            return Uniform().allocate(
                prediction, model=model, budget=budget, min_group_size=lower, max_group_size=upper
            )

    assert "test_equals_brute_force" in broken(Uniformly)
