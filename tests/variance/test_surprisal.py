"""The stand-in against the gradient that it stands for, and its edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viprl.errors import InvalidInputError
from viprl.variance.surprisal import surprisals


def exact(logits: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(C, T) squared norms of d log pi(y) / d logits, as the difference e_y - pi says, and log pi(y)."""
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    gradient = np.eye(logits.shape[-1])[chosen] - np.exp(logs)
    return (gradient**2).sum(-1), np.take_along_axis(logs, chosen[..., None], -1)[..., 0]


@given(st.integers(0, 2**32 - 1), st.integers(2, 30), st.floats(0.1, 6.0))
def test_it_is_above_half_of_the_gradient_at_the_logits(seed: int, vocabulary: int, sharpness: float) -> None:
    """-log pi >= 1 - pi >= (1 - pi)^2 >= half of the squared gradient: a large gradient is never called small."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, sharpness, (5, 7, vocabulary))
    squares, logs = exact(logits, rng.integers(0, vocabulary, (5, 7)))
    mask = rng.random((5, 7)) < 0.7
    for aggregation, share in (("sum", 1.0), ("mean", 1 / np.maximum(mask.sum(1), 1) ** 2)):
        truth = (squares * mask).sum(1) * share
        assert (2 * surprisals(logs, mask, aggregation=aggregation) >= truth * (1 - 1e-9)).all()


def test_it_orders_tokens_as_their_gradients() -> None:
    """With two tokens the gradient is a function of pi alone, and falls as pi rises: so must the stand-in."""
    pi = np.linspace(0.01, 0.99, 50)
    squares, logs = exact(np.log(np.stack([pi, 1 - pi], -1)), np.zeros(50, dtype=int))
    assert (np.diff(squares) < 0).all()
    assert (np.diff(surprisals(logs[:, None], np.ones((50, 1)))) < 0).all()


def test_one_rollout_is_a_row() -> None:
    logs, mask = np.log([[0.5, 0.9, 0.1], [0.2, 0.3, 0.4]]), np.array([[1, 1, 0], [0, 1, 1]])
    for aggregation in ("sum", "mean"):
        rows = [float(surprisals(a, b, aggregation=aggregation)) for a, b in zip(logs, mask, strict=True)]
        assert surprisals(logs, mask, aggregation=aggregation).tolist() == rows
    assert surprisals(logs, mask, aggregation="mean")[0] == pytest.approx(-np.log(0.45) / 4)


def test_edges() -> None:
    assert surprisals([0.0, -2.0], [1, 1]) == 2.0  # a certain token has no gradient
    assert np.isnan(surprisals([0.0, -np.inf], [1, 1]))  # a token that could not be drawn: unknown
    assert surprisals([-1.0, -2.0], [0, 0], aggregation="mean") == 0.0
    assert surprisals([np.nan, 9.0, -1e-12], [0, 0, 1]) == pytest.approx(1e-12)  # other tokens are not read
    assert np.isnan(surprisals([[np.nan, -1.0], [-1.0, -1.0]], np.ones((2, 2)))).tolist() == [True, False]
    assert surprisals([1e-7], [1]) == 0.0  # rounding


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([-1.0], [1, 1]), r"alike, but got \(1,\), \(2,\)"),
        (([-1.0, 0.5], [1, 1]), r"not be above zero, but got 0\.5"),
        (([-1.0], [1], "median"), "aggregation must be one of"),
        ((np.zeros((1, 1, 1)), np.zeros((1, 1, 1))), r"\(C, T\) or \(T,\)"),
    ],
)
def test_refusals(arguments: tuple, words: str) -> None:
    given_values, mask, *rest = arguments
    with pytest.raises(InvalidInputError, match=words):
        surprisals(given_values, mask, **({"aggregation": rest[0]} if rest else {}))
