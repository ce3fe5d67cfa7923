"""What every variance model promises."""

from __future__ import annotations

from typing import Any

import numpy as np

from viprl.errors import InvalidInputError
from viprl.prediction.base import Prediction
from viprl.testing.checks import expect_error, random_prediction


class VarianceModelConformance:
    """Subclass and give ``make()``: the variance model.

    Attributes:
        largest: group sizes up to here are tried.
    """

    largest: int = 40

    def make(self) -> Any:
        """The model under test."""
        raise NotImplementedError

    def prediction(self, batch: int = 12, seed: int = 0) -> Prediction:
        """Predictions to try the model on; override if it needs others."""
        return random_prediction(np.random.default_rng(seed), batch)

    def test_has_name_and_convexity(self) -> None:
        model = self.make()
        assert isinstance(model.name, str) and model.name
        assert model.convex_from is None or (isinstance(model.convex_from, int) and model.convex_from >= 1)

    def test_shapes(self) -> None:
        model, prediction = self.make(), self.prediction()
        assert model.variance(prediction, np.full(12, 4)).shape == (12,)
        assert model.variance(prediction, 4).shape == (12,)
        assert model.variance(prediction, np.arange(2, 9)).shape == (12, 7)
        assert model.variance(prediction, np.arange(2, 14)[None, :]).shape == (12, 12)
        assert model.curve(prediction, np.arange(2, 14)).shape == (12, 12), "curve() is a curve also where K == B"
        assert model.curve(prediction[:0], np.arange(2, 5)).shape == (0, 3)

    def test_curve_and_points_agree(self) -> None:
        model, prediction = self.make(), self.prediction()
        sizes = np.arange(2, self.largest + 1)
        curve = model.curve(prediction, sizes)
        for column, n in enumerate(sizes):
            assert np.allclose(model.variance(prediction, np.full(12, n)), curve[:, column], rtol=1e-9, atol=1e-15)
        mixed = np.random.default_rng(1).integers(2, self.largest + 1, 12)
        assert np.allclose(model.variance(prediction, mixed), curve[np.arange(12), mixed - 2], rtol=1e-9, atol=1e-15)

    def test_variances_are_non_negative(self) -> None:
        model, prediction = self.make(), self.prediction()
        values = model.curve(prediction, np.arange(1, self.largest + 1))
        assert not np.isnan(values).any() and (values >= 0).all()
        assert np.isfinite(values[:, 1:]).all(), "from two rollouts on every estimator exists"

    def test_convex_from_is_true(self) -> None:
        model, prediction = self.make(), self.prediction(batch=40)
        if model.convex_from is None:
            return
        values = model.curve(prediction, np.arange(model.convex_from, self.largest + 1))
        with np.errstate(invalid="ignore"):
            gains = values[:, :-1] - values[:, 1:]
        gains = gains[:, np.isfinite(gains).all(axis=0)]
        tolerance = 1e-12 * values[np.isfinite(values)].max()
        assert (gains >= -tolerance).all(), "every curve must fall from convex_from on"
        assert (gains[:, 1:] <= gains[:, :-1] + tolerance).all(), "every curve must be convex from convex_from on"

    def test_each_prompt_has_its_own_curve(self) -> None:
        model, prediction = self.make(), self.prediction()
        order = np.random.default_rng(2).permutation(12)
        sizes = np.arange(2, 10)
        whole = model.curve(prediction, sizes)
        assert np.allclose(model.curve(prediction[order], sizes), whole[order], rtol=1e-9, atol=1e-15)

    def test_is_pure(self) -> None:
        model, prediction = self.make(), self.prediction()
        sizes = np.arange(2, 10)
        before = sizes.copy()
        first = model.curve(prediction, sizes)
        first_copy = first.copy()
        assert np.array_equal(model.curve(prediction, sizes), first_copy)
        assert np.array_equal(sizes, before) and np.array_equal(first, first_copy)

    def test_bad_sizes_are_errors(self) -> None:
        model, prediction = self.make(), self.prediction()
        for what, n in {"n = 0": 0, "n = -1": [-1], "NaN": [np.nan], "three dimensions": np.ones((1, 1, 1))}.items():
            with expect_error(InvalidInputError, what):
                model.variance(prediction, n)

    def test_separable_models_are_separable(self) -> None:
        model, prediction = self.make(), self.prediction()
        if not hasattr(model, "weight"):
            return
        sizes = np.arange(2, self.largest + 1)
        product = model.weight(prediction)[:, None] * np.asarray(model.factor(sizes))[None, :]
        assert np.allclose(model.curve(prediction, sizes), product, rtol=1e-12)
        assert np.allclose(model.curve(prediction.reward_variance, sizes), product, rtol=1e-12), "plain arrays will do"
        doubled = model.curve(2 * prediction.reward_variance, sizes)
        assert np.allclose(doubled, 2 * product, rtol=1e-12)
        for what, weight in {"NaN": [np.nan, 0.1], "negative": [-0.1, 0.1], "infinity": [np.inf, 0.1]}.items():
            with expect_error(InvalidInputError, f"a weight that is {what}"):
                model.variance(weight, [3, 3])

    def test_certain_prompts_have_no_variance(self) -> None:
        model = self.make()
        values = model.curve(Prediction.point([0.0, 1.0]), np.arange(1, 10))
        assert np.allclose(values, 0.0, atol=1e-15), "rewards that are all equal have zero advantages"
