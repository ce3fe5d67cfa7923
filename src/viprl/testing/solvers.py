"""What an exact solver promises; brute force is the judge."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np

from viprl.errors import InfeasibleBudgetError, InvalidInputError
from viprl.testing.checks import expect_error, random_bounds, random_prediction
from viprl.variance import GRPO, RLOO, DrGRPO


class SolverConformance:
    """Subclass and give ``solve``; it has the signature of ``viprl.solve_allocation``.

    Attributes:
        models: (variance model, smallest group size) pairs that the solver claims to be exact for.
        trials: random problems per model.
        costs: whether the solver takes costs.
    """

    models: tuple[tuple[Any, int], ...] = ((RLOO(), 2), (DrGRPO(), 1), (DrGRPO(), 3), (GRPO(), 1))
    trials: int = 60
    costs: bool = True

    def solve(self, *args: Any, **kwargs: Any) -> Any:
        """(model, prediction, budget, min_group_size, max_group_size, scale, cost) -> (B,) sizes."""
        raise NotImplementedError

    def _check(self, model: Any, smallest: int, seed: int, *, with_cost: bool) -> None:
        rng = np.random.default_rng(seed)
        batch = int(rng.integers(1, 5))
        prediction = random_prediction(rng, batch)
        lower, upper, budget = random_bounds(rng, batch, smallest, spread=5)
        scale = rng.random(batch) + 0.1 if seed % 2 else None
        cost = rng.integers(1, 7, batch) if with_cost else None
        if cost is not None:
            budget = int(rng.integers((cost * lower).sum(), (cost * upper).sum() + 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sizes = np.asarray(self.solve(model, prediction, budget, lower, upper, scale, cost))
        assert (sizes >= lower).all() and (sizes <= upper).all()
        spent = int(sizes.sum() if cost is None else (cost * sizes).sum())
        assert spent == budget if cost is None else spent <= budget
        curves = model.curve(prediction, np.arange(1, int(upper.max()) + 1))
        curves = curves if scale is None else curves * scale[:, None]
        best = brute_force(curves, budget, lower, upper, cost)
        value = float(curves[np.arange(batch), sizes - 1].sum())
        assert value <= best + 1e-12 * max(1.0, abs(best)), f"{model!r}: {value} > optimum {best} for {sizes}"

    def test_equals_brute_force(self) -> None:
        for model, smallest in self.models:
            for seed in range(self.trials):
                self._check(model, smallest, seed, with_cost=False)

    def test_equals_brute_force_with_costs(self) -> None:
        if self.costs:
            for model, smallest in self.models:
                for seed in range(self.trials):
                    self._check(model, smallest, seed, with_cost=True)

    def test_impossible_budgets_are_errors(self) -> None:
        for model, smallest in self.models:
            prediction = random_prediction(np.random.default_rng(0), 4)
            low = max(smallest, 3)
            for budget in (4 * low - 1, 4 * 9 + 1):
                with expect_error(InfeasibleBudgetError, f"budget {budget}"):
                    self.solve(model, prediction, budget, low, 9)

    def test_nan_is_an_error(self) -> None:
        with expect_error(InvalidInputError, "NaN among the variances"):
            self.solve(RLOO(), np.array([0.1, np.nan]), 10, 3, 9)

    def test_useless_rollouts_are_spread_equally(self) -> None:
        sizes = self.solve(RLOO(), np.zeros(4), 18, 3, 9)
        assert np.asarray(sizes).tolist() == [5, 5, 4, 4]


def brute_force(
    curves: np.ndarray, budget: int, lower: np.ndarray, upper: np.ndarray, cost: np.ndarray | None = None
) -> float:
    """Smallest sum over all feasible sizes; curves (B, max U) start at n = 1."""
    best = np.inf
    for sizes in itertools.product(*(range(low, high + 1) for low, high in zip(lower, upper, strict=True))):
        n = np.array(sizes)
        if (n.sum() == budget) if cost is None else ((cost * n).sum() <= budget):
            best = min(best, float(curves[np.arange(len(n)), n - 1].sum()))
    return best
