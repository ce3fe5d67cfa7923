"""The value of a group: its derivation, its shape, and the best size at a price."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viprl.errors import InvalidInputError
from viprl.selection import SaturatingValue

SLOPES = st.floats(1e-6, 1.0)
SATURATIONS = st.floats(1e-4, 30.0)


def test_the_sum_of_values_is_the_best_that_weights_can_do() -> None:
    """V_q = s^2 / (v + tau): no weights beat the sum, and w = s / (v + tau) reaches it."""
    rng = np.random.default_rng(0)
    a, n, rho = rng.uniform(0.01, 0.25, 40), rng.integers(2, 20, 40), 0.7
    signal, noise = a, a / (n - 1) + rho * a**2
    total = SaturatingValue.of(a, a**2, rho).at(n).sum()
    progress = lambda w: (w @ signal) ** 2 / (w**2 @ noise)  # noqa: E731
    assert progress(signal / noise) == pytest.approx(total)
    assert max(progress(rng.uniform(0, 1, 40)) for _ in range(200)) < total


def test_known_values() -> None:
    value = SaturatingValue(np.array([0.25, 0.0]), np.array([1.0, 1.0]))
    assert value.at(0).tolist() == value.at(1).tolist() == [0.0, 0.0]
    assert value.at([3, 3]).tolist() == [pytest.approx(0.25 * 2 / 3), 0.0]
    assert value.break_price(1, 9)[0] == pytest.approx(value.at(2)[0] / 2)  # 1 + 1/sqrt(1) = 2


def test_a_dead_prompt_is_worth_what_its_chance_to_be_alive_is() -> None:
    """Half the posterior's mass dead, the other half at 1/2: at large n the value is half of a surely live one's."""
    sure = SaturatingValue.of([0.25], [0.0625], 2.0).at(10**9)[0]
    unsure = SaturatingValue.of([0.125], [0.03125], 2.0).at(10**9)[0]
    assert unsure / sure == pytest.approx(0.5, rel=1e-6)


@given(SLOPES, SATURATIONS, st.integers(1, 40))
def test_the_gain_is_the_difference_and_falls(slope: float, saturation: float, n: int) -> None:
    value = SaturatingValue(np.array([slope]), np.array([saturation]))
    assert value.gain(n)[0] == pytest.approx(value.at(n + 1)[0] - value.at(n)[0], abs=1e-12)
    assert value.gain(n + 1)[0] < value.gain(n)[0]


@given(SLOPES, SATURATIONS, st.floats(1e-7, 1.0), st.integers(1, 6), st.integers(0, 20))
def test_the_size_at_a_price_is_the_best_of_all(slope: float, r: float, price: float, low: int, room: int) -> None:
    value, sizes = SaturatingValue(np.array([slope]), np.array([r])), np.arange(low, low + room + 1)
    net = np.array([value.at(n)[0] - price * n for n in sizes])
    chosen = int(value.size_at(price, low, low + room)[0])
    assert net[chosen - low] >= net.max() - 1e-9 * max(slope, price)
    best = max(value.at(n)[0] / n for n in sizes)
    assert value.break_price(low, low + room)[0] == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.1], [0.1, 0.1], 1.0), "both be"),
        (([0.1], [0.09], 1.0), "E\\[p\\^2"),
        (([-0.1], [0.0], 1.0), "E\\[p\\^2"),
        (([0.1], [0.01], 0.0), "between"),
    ],
)
def test_impossible_moments_are_refused(arguments: tuple[list[float], list[float], float], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        SaturatingValue.of(*arguments)


def test_not_a_number_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="slope"):
        SaturatingValue(np.array([np.nan]), np.array([1.0]))
