"""`unbiased` on the gradients of a policy: right in the mean, and the scatter is what its derivation predicts.

The policy is logistic: prompt q succeeds with p_q = sigmoid(w . x_q), a rollout's score is (action - p_q) x_q, and the
gradient of the success rate p_q (1 - p_q) x_q. Of 128 candidates 60 % are dead. A step's gradient is the mean over its
rollouts of advantage x score, as trainers take it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

import viprl
from viprl._arrays import FloatArray
from viprl.selection import SelectionPolicy, Unbiased, UniformSelection

CANDIDATES, BUDGET, STEPS = 128, 256, 600


class Known(viprl.Predictor):
    """The policy's own success probabilities."""

    def __init__(self, p: FloatArray) -> None:
        self.p = p

    def predict(self, ids: Sequence[Any]) -> viprl.Prediction:
        return viprl.Prediction.point(self.p[list(ids)])

    def observe(self, ids: Any, successes: Any, rollouts: Any) -> None:
        return None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return None


def policy_of(seed: int) -> tuple[FloatArray, FloatArray]:
    """(p, x): success probabilities (K,) and features (K, D), with a common direction so that prompts agree."""
    draws = np.random.default_rng(seed)
    x = draws.normal(size=(CANDIDATES, 24)) / np.sqrt(24) + 0.3
    p = np.where(draws.random(CANDIDATES) < 0.6, 1e-7, draws.uniform(0.05, 0.95, CANDIDATES))
    return p, x


class Measured(NamedTuple):
    """(STEPS, D) gradients of steps, the same without the selection's weights, (K,) how often each was kept."""

    gradients: FloatArray
    unweighted: FloatArray
    chance: FloatArray


def gradients(selection: SelectionPolicy, p: FloatArray, x: FloatArray) -> Measured:
    allocator = viprl.RolloutAllocator(
        Known(p), viprl.RLOO(), selection=selection, candidates=4, policy=viprl.Uniform(), guard=False
    )
    found, unweighted, kept = np.zeros((STEPS, x.shape[1])), np.zeros((STEPS, x.shape[1])), np.zeros(CANDIDATES)
    draws = np.random.default_rng(5)
    for step in range(STEPS):
        allocator.step = step
        plan = allocator.select(range(CANDIDATES), BUDGET)
        rows: NDArray[np.int64] = plan.kept[plan.rows()]
        actions = (draws.random(BUDGET) < p[rows]).astype(float)
        weights = plan.advantages(actions) * (actions - p[rows])
        found[step] = (weights[:, None] * x[rows]).mean(axis=0)
        unweighted[step] = ((weights / plan.prompt_weights[plan.rows()])[:, None] * x[rows]).mean(axis=0)
        kept[plan.kept] += 1
    return Measured(found, unweighted, kept / STEPS)


def predicted(chance: FloatArray, size: float, p: FloatArray, x: FloatArray) -> float:
    """Variance of a step: v_q / pi_q between rollouts; by Hajek's formula for a fixed number between prompts."""
    a = p * (1 - p)
    length = np.square(x).sum(axis=1)
    within = length * ((size - 2) * a * (1 - 2 * p) ** 2 + 2 * _kernel(p)) / (size * (size - 1))  # a U-statistic
    gradient = a[:, None] * x
    spread = chance * (1 - chance)
    centre = (gradient / chance[:, None] * spread[:, None]).sum(axis=0) / spread.sum()
    between = (spread * np.square(gradient / chance[:, None] - centre).sum(axis=1)).sum()
    return float(((within / chance).sum() + between) / CANDIDATES**2)


def _kernel(p: FloatArray) -> FloatArray:
    """Variance of (R_i - R_j)^2 / 2 over independent rollouts, which is RLOO's kernel along x_q."""
    alive = 2 * p * (1 - p)
    return np.asarray(alive * (1 - alive) / 4)


@pytest.fixture(scope="module")
def measured() -> dict[str, Measured]:
    p, x = policy_of(0)
    return {policy.name: gradients(policy, p, x) for policy in (Unbiased(), UniformSelection())}


@pytest.mark.parametrize("name", ["unbiased", "uniform"])
def test_the_mean_is_the_gradient_of_all_candidates(name: str, measured: dict[str, Measured]) -> None:
    assert (np.abs(errors(measured[name].gradients)) < 4.2).all()


def test_the_variance_is_below_uniforms_by_the_predicted_ratio(measured: dict[str, Measured]) -> None:
    p, x = policy_of(0)
    variance, wanted = {}, {}
    for name, (found, _, chance) in measured.items():
        count = chance.sum()
        variance[name] = found.var(axis=0).sum()
        wanted[name] = predicted(np.maximum(chance, 1e-9), BUDGET / count, p, x)
        assert variance[name] == pytest.approx(wanted[name], rel=0.25)
    ratio = variance["unbiased"] / variance["uniform"]
    assert ratio < 0.6 and ratio == pytest.approx(wanted["unbiased"] / wanted["uniform"], rel=0.25)


def test_the_weights_are_what_makes_it_unbiased(measured: dict[str, Measured]) -> None:
    """The same draws without their weights point elsewhere: the test of the mean can fail."""
    assert (np.abs(errors(measured["unbiased"].unweighted)) > 4.2).any()


def errors(found: FloatArray) -> FloatArray:
    """(D,) how far the mean is from the gradient of all candidates, in standard errors."""
    p, x = policy_of(0)
    wanted = ((p * (1 - p))[:, None] * x).mean(axis=0)
    return np.asarray((found.mean(axis=0) - wanted) / (found.std(axis=0) / np.sqrt(len(found))))
