"""What every policy promises."""

from __future__ import annotations

from typing import Any

import numpy as np

from viprl.errors import InfeasibleBudgetError, InvalidInputError
from viprl.prediction.base import Prediction
from viprl.testing.checks import expect_error, random_bounds, random_prediction
from viprl.variance import RLOO


class PolicyConformance:
    """Subclass and give ``make()``: the policy; ``model()`` where RLOO will not do.

    Attributes:
        smallest: smallest group size that is tried.
        trials: random problems per test.
        ties: by how much a size may change when the prompts change their order; 1 where leftovers go by order alone.
    """

    smallest: int = 3
    trials: int = 40
    ties: int = 0

    def make(self) -> Any:
        """The policy under test."""
        raise NotImplementedError

    def model(self) -> Any:
        """The variance model handed to the policy."""
        return RLOO()

    def _allocate(self, prediction: Prediction, budget: Any, lower: Any, upper: Any, scale: Any = None) -> Any:
        return self.make().allocate(
            prediction,
            model=self.model(),
            budget=budget,
            min_group_size=lower,
            max_group_size=upper,
            scale=scale,
        )

    def _problems(self) -> Any:
        for seed in range(self.trials):
            rng = np.random.default_rng(seed)
            batch = int(rng.integers(1, 30))
            lower, upper, budget = random_bounds(rng, batch, self.smallest, spread=20)
            yield rng, random_prediction(rng, batch), budget, lower, upper

    def test_has_a_name(self) -> None:
        name = self.make().name
        assert isinstance(name, str) and name

    def test_spends_the_budget_within_the_bounds(self) -> None:
        for rng, prediction, budget, lower, upper in self._problems():
            for scale in (None, rng.random(len(prediction)) + 0.1):
                sizes = self._allocate(prediction, budget, lower, upper, scale)
                assert sizes.dtype == np.int64 and sizes.shape == (len(prediction),)
                assert sizes.sum() == budget, f"sum n_q = {sizes.sum()}, budget {budget}"
                assert (sizes >= lower).all() and (sizes <= upper).all()

    def test_common_bounds(self) -> None:
        prediction = random_prediction(np.random.default_rng(0), 16)
        for budget in (48, 49, 127, 128, 511, 512):
            sizes = self._allocate(prediction, budget, 3, 32)
            assert sizes.sum() == budget and sizes.min() >= 3 and sizes.max() <= 32

    def test_only_one_choice(self) -> None:
        prediction = random_prediction(np.random.default_rng(0), 5)
        assert self._allocate(prediction, 15, 3, 9).tolist() == [3] * 5, "C = B L"
        assert self._allocate(prediction, 45, 3, 9).tolist() == [9] * 5, "C = B U"
        assert self._allocate(prediction, 20, 4, 4).tolist() == [4] * 5, "L = U"
        assert self._allocate(prediction[:1], 7, 3, 9).tolist() == [7], "one prompt"
        assert self._allocate(prediction[:0], 0, 3, 9).shape == (0,), "no prompt"

    def test_impossible_budgets_are_errors(self) -> None:
        prediction = random_prediction(np.random.default_rng(0), 5)
        for budget in (14, 46, 0, -1):
            with expect_error(InfeasibleBudgetError, f"budget {budget} for 5 prompts within [3, 9]"):
                self._allocate(prediction, budget, 3, 9)
        with expect_error(InvalidInputError, "L > U"):
            self._allocate(prediction, 20, 5, 4)
        with expect_error(InvalidInputError, "a budget that is not whole"):
            self._allocate(prediction, 20.5, 3, 9)

    def test_is_pure(self) -> None:
        for _, prediction, budget, lower, upper in self._problems():
            arrays = (prediction.mean, prediction.bernoulli_variance, lower, upper)
            before = [array.copy() for array in arrays]
            policy = self.make()
            first, second = (
                policy.allocate(
                    prediction, model=self.model(), budget=budget, min_group_size=lower, max_group_size=upper
                )
                for _ in range(2)
            )
            assert np.array_equal(first, second), "the same question, the same answer"
            assert np.array_equal(first, self._allocate(prediction, budget, lower, upper)), "no hidden state"
            assert all(np.array_equal(a, b) for a, b in zip(arrays, before, strict=True)), "arguments stay as they are"

    def test_order_of_the_prompts_does_not_matter(self) -> None:
        for rng, prediction, budget, lower, upper in self._problems():
            order = rng.permutation(len(prediction))
            here = self._allocate(prediction, budget, lower, upper)
            there = self._allocate(prediction[order], budget, lower[order], upper[order])
            assert np.abs(here[order] - there).max(initial=0) <= self.ties, "sizes must follow their prompts"

    def test_equal_prompts_are_served_equally(self) -> None:
        prediction = Prediction.beta(np.full(7, 2.0), np.full(7, 3.0))
        sizes = self._allocate(prediction, 39, 3, 32)
        assert (np.diff(sizes) <= 0).all(), "of equal prompts the earlier gets more"
        if self.model().convex_from is not None:  # on curves that are not convex unequal sizes may well be better
            assert sizes.tolist() == [6, 6, 6, 6, 5, 5, 5], "as equal as possible"
