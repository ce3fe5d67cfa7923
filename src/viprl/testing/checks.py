"""Small helpers of the suites."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from viprl.prediction.base import Prediction

PLAIN = (bool, int, float, str, type(None), np.ndarray, np.generic)


@contextmanager
def expect_error(kind: type[BaseException], what: str) -> Iterator[None]:
    """Fail unless the block raises ``kind``."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{what} must raise {kind.__name__}, but nothing was raised")


def same(a: Any, b: Any) -> bool:
    """Equal bit for bit, through nested dicts and lists; NaN equals NaN."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        x, y = np.asarray(a), np.asarray(b)
        return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
    return bool(a == b or (a != a and b != b))


def is_plain(value: Any) -> bool:
    """Numbers, strings, arrays of them, lists and dicts with string keys: what a checkpoint can hold without pickle."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(is_plain(item) for item in value)
    if isinstance(value, np.ndarray):
        return bool(value.dtype.kind != "O")
    return isinstance(value, PLAIN)


def same_prediction(a: Prediction, b: Prediction) -> bool:
    """Bit for bit the same predictions."""
    return all(
        same(getattr(a, name), getattr(b, name)) for name in ("mean", "bernoulli_variance", "reward_variance", "cold")
    )


def random_prediction(rng: np.random.Generator, batch: int) -> Prediction:
    """Beta posteriors from nearly certain to nearly flat."""
    return Prediction.beta(rng.gamma(1.0, 2.0, batch) + 0.05, rng.gamma(1.0, 2.0, batch) + 0.05)


def random_bounds(
    rng: np.random.Generator, batch: int, smallest: int, *, spread: int = 6
) -> tuple[np.ndarray, np.ndarray, int]:
    """Per-prompt bounds (B,), (B,) from ``smallest`` on and a feasible budget."""
    lower = rng.integers(smallest, smallest + 3, batch)
    upper = lower + rng.integers(0, spread + 1, batch)
    return lower, upper, int(rng.integers(lower.sum(), upper.sum() + 1))
