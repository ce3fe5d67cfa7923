"""Prediction: the quadrature is exact where it says so."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, special, stats

from viprl.errors import InvalidInputError
from viprl.prediction.base import Prediction

shapes = st.floats(0.02, 500.0)


@given(shapes, shapes, st.integers(0, 31))
def test_beta_moments_are_exact(a: float, b: float, power: int) -> None:
    found = Prediction.beta([a], [b]).expect(lambda p: p**power)
    assert found[0] == pytest.approx(np.exp(special.betaln(a + power, b) - special.betaln(a, b)), rel=1e-9)


@given(shapes, shapes)
def test_beta_summary_agrees_with_its_quadrature(a: float, b: float) -> None:
    prediction = Prediction.beta([a], [b])
    assert prediction.expect(lambda p: p)[0] == pytest.approx(prediction.mean[0], rel=1e-9)
    assert prediction.expect(lambda p: p * (1 - p))[0] == pytest.approx(prediction.bernoulli_variance[0], rel=1e-7)
    square = prediction.expect(lambda p: np.square(p * (1 - p)))[0]
    assert square == pytest.approx(prediction.bernoulli_square[0], rel=1e-7, abs=1e-15)
    assert prediction[[0]].bernoulli_square[0] == prediction.bernoulli_square[0]
    assert prediction.bernoulli_variance[0] <= prediction.mean[0] * (1 - prediction.mean[0]) + 1e-15


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (1.0, 1.0), (0.3, 0.7)])
def test_the_degenerate_recurrence_is_handled(a: float, b: float) -> None:
    nodes, weights = Prediction.beta([a], [b]).nodes()
    assert np.isfinite(nodes).all() and weights.sum() == pytest.approx(1)
    assert (weights * nodes**5).sum() == pytest.approx(stats.beta(a, b).moment(5))


def test_logistic_normal_is_scipys_integral() -> None:
    for mean, variance in [(0.0, 1.0), (-2.0, 0.5), (1.0, 4.0)]:
        prediction = Prediction.logistic_normal([mean], [variance])

        def density(g: float, m: float = mean, v: float = variance) -> float:
            return float(stats.norm(m, np.sqrt(v)).pdf(g))

        truth = integrate.quad(lambda g: special.expit(g) * density(g), -30, 30)[0]
        spread = integrate.quad(lambda g: special.expit(g) * special.expit(-g) * density(g), -30, 30)[0]
        assert prediction.mean[0] == pytest.approx(truth, abs=1e-4)
        assert prediction.bernoulli_variance[0] == pytest.approx(spread, abs=1e-4)


def test_a_point_is_sure_of_itself() -> None:
    prediction = Prediction.point([0.0, 0.3, 1.0])
    np.testing.assert_allclose(prediction.bernoulli_variance, [0, 0.21, 0])
    np.testing.assert_allclose(prediction.expect(lambda p: p**3), [0, 0.027, 1])


def test_curves_and_parts() -> None:
    prediction = Prediction.beta([1.0, 2.0, 3.0], [3.0, 2.0, 1.0], cold=[True, False, False])
    sizes = np.arange(2, 6)
    curve = prediction.expect(lambda p: p[..., None] ** sizes)
    assert curve.shape == (3, 4)
    part = prediction[np.array([2, 0])]
    np.testing.assert_allclose(part.expect(lambda p: p[..., None] ** sizes), curve[[2, 0]])
    assert part.cold.tolist() == [False, True] and len(part) == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: Prediction.point([1.2]),
        lambda: Prediction.point([np.nan]),
        lambda: Prediction.beta([0.0], [1.0]),
        lambda: Prediction.logistic_normal([0.0], [-1.0]),
        lambda: Prediction.from_nodes([[0.5, 1.5]], [1, 1]),
        lambda: Prediction.from_nodes([[0.5, 0.6]], [0, 0]),
        lambda: Prediction.point([0.1, 0.2], cold=[True]),
        lambda: Prediction.point([0.1]).expect(lambda p: p[0]),
    ],
)
def test_bad_input_is_refused(make: object) -> None:
    with pytest.raises(InvalidInputError):
        make()  # type: ignore[operator]
