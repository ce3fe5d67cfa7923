"""The proxy against the gradient that it bounds, and its edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viprl.errors import InvalidInputError
from viprl.variance.logit_proxy import logit_norms


def exact(logits: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(C, T) squared norms of d log pi(y) / d logits, as the difference e_y - pi says, and log pi(y)."""
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    gradient = np.eye(logits.shape[-1])[chosen] - np.exp(logs)
    return (gradient**2).sum(-1), np.take_along_axis(logs, chosen[..., None], -1)[..., 0]


@given(st.integers(0, 2**32 - 1), st.integers(2, 30), st.floats(0.1, 6.0))
def test_it_bounds_the_gradient_at_the_logits(seed: int, vocabulary: int, sharpness: float) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, sharpness, (5, 7, vocabulary))
    squares, chosen = exact(logits, rng.integers(0, vocabulary, (5, 7)))
    mask = rng.random((5, 7)) < 0.7
    for aggregation, share in (("sum", 1.0), ("mean", 1 / np.maximum(mask.sum(1), 1) ** 2)):
        truth = (squares * mask).sum(1) * share
        proxy = logit_norms(chosen, mask, aggregation=aggregation)
        assert (proxy <= truth * (1 + 1e-9) + 1e-12).all() and (truth <= 2 * proxy * (1 + 1e-9) + 1e-12).all()


def test_the_bounds_are_reached() -> None:
    two = np.log([[0.3, 0.7]])  # one other token: twice the proxy
    many = np.log([[0.3, *([0.7 / 1000] * 1000)]])  # the rest spread thin: the proxy itself
    for logits, factor in ((two, 2.0), (many, 1.0)):
        squares, chosen = exact(logits, np.array([0]))
        assert squares[0] / logit_norms(chosen, [1]) == pytest.approx(factor, rel=2e-3)


def test_the_exact_gradient_is_the_one_of_automatic_differentiation() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    logits, chosen = rng.normal(0, 2, (1, 4, 9)), rng.integers(0, 9, (1, 4))
    leaf = torch.tensor(logits, requires_grad=True)
    logs = torch.log_softmax(leaf, -1).gather(-1, torch.tensor(chosen)[..., None])
    (gradient,) = torch.autograd.grad(logs.sum(), leaf)
    np.testing.assert_allclose(gradient.square().sum(-1).numpy(), exact(logits, chosen)[0], rtol=1e-9)


def test_one_rollout_is_a_row() -> None:
    logs, mask = np.log([[0.5, 0.9, 0.1], [0.2, 0.3, 0.4]]), np.array([[1, 1, 0], [0, 1, 1]])
    for aggregation in ("sum", "mean"):
        rows = [float(logit_norms(a, b, aggregation=aggregation)) for a, b in zip(logs, mask, strict=True)]
        assert logit_norms(logs, mask, aggregation=aggregation).tolist() == rows
    assert logit_norms(logs, mask, aggregation="mean")[0] == pytest.approx((0.25 + 0.01) / 4)


def test_edges() -> None:
    assert logit_norms([0.0, -np.inf], [1, 1]) == 1.0  # certain: no gradient; impossible: the largest
    assert logit_norms([-1.0, -2.0], [0, 0], aggregation="mean") == 0.0
    assert logit_norms([np.nan, 9.0, -1e-12], [0, 0, 1]) == pytest.approx(1e-24)  # other tokens are not read
    assert np.isnan(logit_norms([[np.nan, -1.0], [-1.0, -1.0]], np.ones((2, 2)))).tolist() == [True, False]
    assert logit_norms([1e-7], [1]) == 0.0  # rounding


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
        logit_norms(given_values, mask, **({"aggregation": rest[0]} if rest else {}))
