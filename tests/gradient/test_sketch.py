# ruff: noqa: E402  (optional packages are asked for first)
"""The sketch keeps inner products within its stated error, and is linear and reproducible."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from viprl.errors import InvalidInputError
from viprl.gradient.sketch import DEFAULT_SIZE, CountSketch


def sketched(sketch: CountSketch, name: str, values):
    out = torch.zeros(len(values), sketch.size)
    sketch.add_dense(out, name, values)
    return out


def test_unbiased_with_the_stated_variance() -> None:
    """Many independent small sketches of one fixed pair: mean and mean square error as the docstring says."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 200, generator=generator, dtype=torch.float64)
    y = y + x
    errors = []
    for seed in range(1500):
        sketch = CountSketch({"w": (200,)}, size=16, seed=seed)
        a, b = sketched(sketch, "w", torch.stack([x, y]).float()).double()
        errors.append((a @ b - x @ y).item())
    errors = torch.tensor(errors)
    bound = (x.square().sum() * y.square().sum() + (x @ y) ** 2) / 16
    standard_error = errors.std() / len(errors) ** 0.5
    assert abs(errors.mean()) < 4 * standard_error
    assert errors.square().mean() < 1.1 * bound
    assert errors.square().mean() > 0.6 * bound  # the bound is close to what happens, not a formality


def test_default_size_keeps_inner_products_to_one_percent() -> None:
    """Heavy-tailed vectors much longer than the sketch, several tensors of awkward shapes."""
    generator = torch.Generator().manual_seed(1)
    shapes = {"a": (300, 501), "b": (77,), "c": (1000, 257)}
    sketch = CountSketch(shapes)
    total = torch.zeros(12, DEFAULT_SIZE)
    exact = []
    for name, shape in shapes.items():
        values = torch.randn(12, *shape, generator=generator) ** 3
        sketch.add_dense(total, name, values)
        exact.append(values.flatten(1))
    vectors = torch.cat(exact, 1).double()
    norms = vectors.norm(dim=1)
    relative = (total.double() @ total.double().T - vectors @ vectors.T) / (norms[:, None] * norms[None, :])
    assert relative.square().mean().sqrt() < sketch.error_bound < 0.01
    assert relative.abs().max() < 4 * sketch.error_bound


def test_sparse_rows_equal_dense() -> None:
    generator = torch.Generator().manual_seed(2)
    sketch = CountSketch({"e": (13, 7)}, size=10)
    ids = torch.randint(0, 13, (4, 6), generator=generator)
    values = torch.randn(4, 6, 7, generator=generator)
    dense = torch.zeros(4, 13, 7).scatter_add_(1, ids[:, :, None].expand(-1, -1, 7), values)
    rows = torch.zeros(4, 10)
    sketch.add_rows(rows, "e", ids, values)
    torch.testing.assert_close(rows, sketched(sketch, "e", dense))


def test_linear_and_reproducible() -> None:
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(2, 1, 50, generator=generator)
    one, two = CountSketch({"w": (50,)}, size=8, seed=5), CountSketch({"w": (50,)}, size=8, seed=5)
    torch.testing.assert_close(sketched(one, "w", x + 2 * y), sketched(two, "w", x) + 2 * sketched(two, "w", y))


def test_refusals() -> None:
    with pytest.raises(InvalidInputError, match="size >= 1"):
        CountSketch({"w": (5,)}, size=0)
    with pytest.raises(InvalidInputError, match="5 elements"):
        sketched(CountSketch({"w": (5,)}, size=4), "w", torch.zeros(1, 6))
