"""What a variance model is, and how its arguments are read.

Notation: B prompts in the batch, K group sizes, n a group size, v_q(n) the gradient variance of prompt q.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from viprl._arrays import FloatArray, IntArray
from viprl.errors import InvalidInputError

if TYPE_CHECKING:
    from viprl.feedback.rewards import Rewards
    from viprl.prediction.base import Prediction


class BiasWarning(UserWarning):
    """Group sizes so small that minimising the variance starves prompts instead of serving them."""


class Realised(NamedTuple):
    """What one step's rewards say each prompt's variance would have been at S alternatives of group sizes.

    Attributes:
        values: (S, B) estimates; prompts with NaN or infinity at any alternative say nothing and are left out.
        noise: (S, S, B) estimated covariances of the estimates, given the prompts as they are; single ones may be
            negative. The products of the values are an upper bound in the mean.
    """

    values: FloatArray
    noise: FloatArray


class VarianceModel(ABC):
    """The gradient variance of a prompt as a function of its group size: the base of every variance model.

    A subclass gives ``name`` and ``curve``, and ``variance`` where it has a formula. One that learns sets ``learns``,
    and gives ``bind``, ``taught``, ``learn`` and its state; the other methods may stay as they are.
    """

    name: str
    """The estimator: "rloo", "dr_grpo", "grpo", or a name of your own."""
    convex_from: int | None = None
    """Smallest n from which every curve is non-increasing and convex; None where no n guarantees it."""
    epsilon: float | None = None
    """What the estimator adds to the group's standard deviation, where it divides by it."""
    learns: bool = False
    """Whether the model learns from gradient norms (``learn``)."""

    @property
    def estimator(self) -> str:
        """The advantages whose variance this is; ``viprl.group_advantages`` knows the name."""
        return self.name

    def variance(self, prediction: Prediction | ArrayLike, n: ArrayLike) -> FloatArray:
        """v_q(n) at per-prompt sizes: n (B,) -> (B,); or its curve: n (K,) with K != B, or (1, K) -> (B, K).

        Read off ``curve`` at whole n, unless a subclass has a formula.
        """
        sizes = check_sizes(n, whole=True)
        batch = batch_size(prediction)
        if is_curve(sizes, batch):
            return self.curve(prediction, sizes.reshape(-1))
        distinct, column = np.unique(np.broadcast_to(sizes, (batch,)), return_inverse=True)
        values = self.curve(prediction, distinct)
        return np.asarray(values[np.arange(batch), column.reshape(-1)], dtype=np.float64)

    @abstractmethod
    def curve(self, prediction: Prediction | ArrayLike, sizes: ArrayLike) -> FloatArray:
        """(B, K) values of v_q at the K sizes, whatever K is."""

    def check_min_group_size(self, smallest: int) -> None:
        """Warn where groups of ``smallest`` rollouts make the minimisation of the variance meaningless."""
        return None

    def bind(self, prompt_ids: Sequence[Hashable]) -> VarianceModel:
        """The model of these B prompts, in this order; formulas do not know prompts by name."""
        return self

    def realised(self, rewards: Rewards, sizes: IntArray, squared_norms: FloatArray | None = None) -> Realised:
        """By which measure the guard compares the policy's groups with uniform ones, on rollouts alone.

        Here the level comes from the rewards and the shape from the curve: s_q^2 v(J_q, n) / a(J_q), with s^2 the
        group's sample variance, J what the step alone says of the prompt and a its reward variance. Where curves are
        multiples of one f(n) this is s^2 f(n), which is unbiased whatever sizes were used.

        Args:
            rewards: of the step's B groups.
            sizes: (S, B) alternatives; the policy's and uniform ones.
            squared_norms: (C,) of the rollouts' gradients where known.
        """
        alone = rewards.as_prediction()
        with np.errstate(divide="ignore", invalid="ignore"):
            shape = np.stack([self.variance(alone, n) for n in sizes]) / alone.reward_variance
            shape = np.where(rewards.variances > 0, shape, 0.0)
            return Realised(rewards.variances * shape, rewards.noise * shape[:, None] * shape[None])

    @property
    def taught(self) -> bool:
        """Whether a model that learns has learnt anything yet."""
        return False

    def learn(
        self,
        prompt_ids: Sequence[Hashable],
        prediction: Prediction,
        group_sizes: ArrayLike,
        rewards: ArrayLike,
        squared_norms: ArrayLike,
    ) -> None:
        """Learn from one step: B prompts, the prediction made before it, (B,) planned sizes, (C,) rewards in {0, 1} and
        squared gradient norms in plan order, NaN where missing. A call that raises changes nothing."""
        return None

    def metrics(self) -> dict[str, float]:
        """Numbers worth logging."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Everything the next step needs; nothing for a formula."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state_dict()``."""
        return None


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
