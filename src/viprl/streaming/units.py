"""Unit prices of a prompt: what its first, second, ... rollout is worth at most; see ``viprl.streaming.price``.

Without selection the first L rollouts are given whatever they cost, and the (n+1)-th is worth v(n) - v(n+1). With
selection (``viprl.selection.value``) the first L stand or fall together, at the prompt's break price max_n V(n)/n, and
none of the others is worth more than that. Ways to choose differ in what they do to the break price: ``top`` takes it
as it is, ``learnability`` multiplies it by exp(Gumbel / sharpness), which draws prompts as its batch form does.

Notation: L and U bounds of a group, v gradient variance, V value, a = E[p(1-p)], b = E[p^2 (1-p)^2], r = rho b/a.
"""

from __future__ import annotations

import math

import numpy as np

from viprl._arrays import FloatArray
from viprl.errors import ConfigurationError
from viprl.prediction.base import Belief, Predictor, PromptId
from viprl.selecting import BETWEEN
from viprl.selection import Learnability, SelectionPolicy, Top, UniformSelection
from viprl.streaming.price import concave
from viprl.variance import VarianceModel
from viprl.variance.separable import SeparableVariance

TIE = 1e-9  # prompts of equal worth are told apart by a draw, so that the price can divide them
LEAST = 1e-12  # variance of a prompt that is believed to have none, so that many of those share what nobody else wants


class UnitPrices:
    """Args:
    predictor, model: see ``StreamAllocator``.
    lower, upper: L, U.
    selection: how prompts are chosen; None where all are kept.

    Raises:
        ConfigurationError: a way to choose that has no form without a batch.
    """

    def __init__(
        self, predictor: Predictor, model: VarianceModel, lower: int, upper: int, selection: SelectionPolicy | None
    ) -> None:
        if selection is not None and not isinstance(selection, Top | Learnability | UniformSelection):
            raise ConfigurationError(
                "a stream's selection must be one of top, learnability, uniform (others know their chances from the "
                f"whole batch), but got {type(selection).__name__}"
            )
        self.predictor, self.model = predictor, model
        self.lower, self.upper = lower, upper
        self.selection = selection
        self._sizes = np.arange(lower, upper + 1)
        self._pairs = np.arange(lower, upper, dtype=np.float64)  # n - 1 of the sizes after the one that is raised
        self._shape: FloatArray | None = None
        if isinstance(model, SeparableVariance):  # v(n) = a f(n): one shape for every prompt
            factor = model.factor(self._sizes)
            self._shape = concave(np.minimum(factor[:-1] - factor[1:], 1e300))
        self._widest = 0.0

    def of(self, prompt_id: PromptId, luck: float) -> tuple[Belief, FloatArray, float]:
        """Belief, gains (U - L,) of the rollouts beyond L, and the price above which the prompt is left out; pure.

        Args:
            luck: a draw from (0, 1).
        """
        tie = 1.0 + TIE * luck
        belief = self.predictor.belief(prompt_id)
        if self.selection is None:
            return belief, self._variance_gains(prompt_id, belief) * tie, math.inf
        slope, saturation = self._value(belief)
        after = 1.0 + saturation * self._pairs
        gains = slope / (after * (after - saturation))
        return belief, gains * tie, self._break_price(slope, saturation) * self._noise(luck)

    def meet(self, belief: Belief) -> None:
        """Take in the prompt that is offered now."""
        self._widest = max(belief.reward_variance, 0.999 * self._widest)

    def _variance_gains(self, prompt_id: PromptId, belief: Belief) -> FloatArray:
        if self._shape is not None:
            return (belief.reward_variance + LEAST) * self._shape
        ids = (prompt_id,)
        curve = self.model.bind(ids).curve(self.predictor.predict(ids), self._sizes)[0]
        return np.maximum(concave(curve[:-1] - curve[1:]), LEAST / np.square(self._sizes[:-1]))

    def _value(self, belief: Belief) -> tuple[float, float]:
        """Slope and saturation of ``SaturatingValue``; for real rewards, which know no p(1-p) <= 1/4, by the widest."""
        spread = belief.reward_variance + LEAST
        if self.predictor.reward_kind == "binary":
            ratio = belief.square / spread if spread > 1e-9 else 0.25
        else:
            ratio = spread / (4.0 * max(self._widest, spread))
        return spread, BETWEEN * max(ratio, 1e-9)

    def _break_price(self, slope: float, saturation: float) -> float:
        below = min(max(math.floor(1.0 + 1.0 / math.sqrt(saturation)), self.lower), self.upper)
        best = 0.0
        for n in (below, min(below + 1, self.upper)):
            best = max(best, slope * (n - 1) / (1.0 + saturation * (n - 1)) / n)
        return best

    def _noise(self, luck: float) -> float:
        if isinstance(self.selection, Learnability):
            return math.exp(-math.log(-math.log(luck)) / self.selection.sharpness)
        return 1.0 + TIE * luck

    def state_dict(self) -> dict[str, float]:
        return {"widest": self._widest}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self._widest = float(state["widest"])
