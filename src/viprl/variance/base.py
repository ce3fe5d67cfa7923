"""What a variance model is, and how its arguments are read.

Notation: B prompts in the batch, K group sizes, n a group size, v_q(n) the gradient variance of prompt q.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from viprl._arrays import FloatArray
from viprl.errors import InvalidInputError

if TYPE_CHECKING:
    from viprl.prediction.base import Prediction


class BiasWarning(UserWarning):
    """Group sizes so small that minimising the variance starves prompts instead of serving them."""


@runtime_checkable
class VarianceModel(Protocol):
    """The gradient variance of a prompt as a function of its group size, up to the common factor sigma_Z^2."""

    @property
    def name(self) -> str:
        """The estimator: "rloo", "dr_grpo", "grpo", or a name of your own."""
        ...

    @property
    def convex_from(self) -> int | None:
        """Smallest n from which every curve is non-increasing and convex; None where no n guarantees it."""
        ...

    def variance(self, prediction: Prediction | ArrayLike, n: ArrayLike) -> FloatArray:
        """v_q(n) at per-prompt sizes: n (B,) -> (B,); or its curve: n (K,) with K != B, or (1, K) -> (B, K)."""
        ...

    def curve(self, prediction: Prediction | ArrayLike, sizes: ArrayLike) -> FloatArray:
        """(B, K) values of v_q at the K sizes, whatever K is."""
        ...


@runtime_checkable
class SeparableVarianceModel(VarianceModel, Protocol):
    """A model whose curves are multiples of one curve: v_q(n) = weight_q * factor(n)."""

    def weight(self, prediction: Prediction | ArrayLike) -> FloatArray:
        """(B,) non-negative."""
        ...

    def factor(self, n: ArrayLike) -> FloatArray:
        """The common curve, of the shape of n; infinite where the estimator does not exist."""
        ...


def batch_size(prediction: Prediction | ArrayLike) -> int:
    """B, the number of prompts that ``prediction`` (a Prediction or a (B,) array) describes."""
    values: Any = getattr(prediction, "reward_variance", prediction)  # type: ignore[arg-type]
    shape = np.shape(values)
    if len(shape) != 1:
        raise InvalidInputError(f"a plain prediction must be a one-dimensional array, but got shape {shape}")
    return int(shape[0])


def check_sizes(n: ArrayLike, *, whole: bool) -> NDArray[Any]:
    """The group sizes as an array.

    Raises:
        InvalidInputError: a size below one, not finite or, where ``whole``, not an integer.
    """
    sizes = np.asarray(n)
    if sizes.dtype.kind not in "iuf":
        raise InvalidInputError(f"group sizes must be numbers, but got an array of type {sizes.dtype}")
    if sizes.dtype.kind == "f" and not np.isfinite(sizes).all():
        raise InvalidInputError("group sizes must be finite, but got NaN or infinity")
    if sizes.size and sizes.min() < 1:
        raise InvalidInputError(f"n >= 1 must hold for every group size, but got {sizes.min()}")
    if whole and sizes.dtype.kind == "f" and (sizes != np.floor(sizes)).any():
        raise InvalidInputError(f"group sizes must be integers, but got {sizes[sizes != np.floor(sizes)].flat[0]}")
    return sizes


def is_curve(sizes: NDArray[Any], batch: int) -> bool:
    """Whether sizes ask for one curve over common sizes (True) or for one size per prompt (False).

    Raises:
        InvalidInputError: neither a scalar, (B,), (K,) nor (1, K).
    """
    if sizes.ndim == 0 or sizes.shape == (batch,):
        return False
    if sizes.ndim == 1 or (sizes.ndim == 2 and sizes.shape[0] == 1):
        return True
    raise InvalidInputError(f"n must be (B,), (K,) or (1, K) with B = {batch} prompts, but got shape {sizes.shape}")
