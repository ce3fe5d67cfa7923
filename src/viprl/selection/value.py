"""What a prompt's rollouts are worth to a step, as a function of their number.

Prompt q's gradient estimate from n rollouts has the mean g_q and the variance v_q(n). Along the step's common direction
it carries the signal s_q; everything else is noise: v_q(n) between its rollouts, tau_q between prompts. The step that
weighs its prompts best moves, per unit of squared length, along that direction by

    (sum_q w_q s_q)^2 / sum_q w_q^2 (v_q(n_q) + tau_q)  <=  sum_q V_q(n_q),      V_q(n) = s_q^2 / (v_q(n) + tau_q),

(Cauchy and Schwarz; equality at w_q = s_q / (v_q + tau_q)), so the value of a step is a sum over its prompts. Since
grad p = p(1-p) grad logit, s_q is proportional to a_q = p(1-p) and tau_q to a_q^2, while v_q(n) = a_q / (n-1) (RLOO).
With the posterior's means a = E[p(1-p)], b = E[p^2 (1-p)^2] and one constant, the between-prompt noise rho,

    V_q(n) = a^2 / (a/(n-1) + rho b) = a (n-1) / (1 + r (n-1)),      r = rho b/a.

It is 0 at n = 0 and n = 1, concave from 1 on, proportional to a for small groups and saturates at a^2 / (rho b), which
is the chance that the prompt is alive at all. A prompt alone would spend its rollouts best at n = 1 + 1/sqrt(r).

Notation: K candidates, n group sizes, L and U their bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from viprl._arrays import FloatArray, IntArray
from viprl.errors import InvalidInputError


@dataclass(frozen=True)
class SaturatingValue:
    """V_q(n) = a_q (n-1) / (1 + r_q (n-1)) of K candidates.

    Attributes:
        slope: (K,) a_q, the value of the second rollout where nothing saturates; non-negative.
        saturation: (K,) r_q; positive.
    """

    slope: FloatArray
    saturation: FloatArray

    def __post_init__(self) -> None:
        slope = np.asarray(self.slope, dtype=np.float64)
        saturation = np.broadcast_to(np.asarray(self.saturation, dtype=np.float64), slope.shape)
        if slope.ndim != 1:
            raise InvalidInputError(f"the values must be one a candidate, (K,), but got shape {slope.shape}")
        for name, array, low in (("slope", slope, slope >= 0), ("saturation", saturation, saturation > 0)):
            if array.size and not (low.all() and np.isfinite(array).all()):
                rule = "0 <= slope < infinity" if name == "slope" else "0 < saturation < infinity"
                raise InvalidInputError(f"{rule} must hold, but got minimum {array.min()}, maximum {array.max()}")
        object.__setattr__(self, "slope", slope)
        object.__setattr__(self, "saturation", saturation)

    @classmethod
    def of(cls, spread: ArrayLike, square: ArrayLike, between: float) -> SaturatingValue:
        """From the posterior's moments.

        Args:
            spread, square: (K,) E[p(1-p)] and E[p^2 (1-p)^2].
            between: rho, noise between prompts in units of the noise between the rollouts of one.

        Raises:
            InvalidInputError: shapes that differ, moments that no posterior has, or rho that is not positive.
        """
        a, b = np.asarray(spread, dtype=np.float64), np.asarray(square, dtype=np.float64)
        if a.shape != b.shape or a.ndim != 1:
            raise InvalidInputError(f"spread and square must both be (K,), but got shapes {a.shape}, {b.shape}")
        if a.size and not ((a >= 0).all() and (b >= 0).all() and (b <= a / 4 + 1e-12).all()):
            raise InvalidInputError(
                "0 <= E[p^2 (1-p)^2] <= E[p(1-p)] / 4 must hold, but got "
                f"minima {a.min()}, {b.min()} and the largest ratio {np.nanmax(b / np.maximum(a, 1e-300))}"
            )
        if not 0 < between < np.inf:
            raise InvalidInputError(f"0 < between < infinity must hold, but got {between}")
        tiny = 1e-9
        ratio = np.divide(b, a, out=np.full(a.shape, 0.25), where=a > tiny)
        return cls(a, between * np.maximum(ratio, tiny))

    def __len__(self) -> int:
        return len(self.slope)

    def __getitem__(self, rows: ArrayLike | slice) -> SaturatingValue:
        index = rows if isinstance(rows, slice) else np.asarray(rows)
        part = object.__new__(SaturatingValue)  # parts of what was checked need no check
        object.__setattr__(part, "slope", self.slope[index])
        object.__setattr__(part, "saturation", self.saturation[index])
        return part

    def at(self, n: ArrayLike) -> FloatArray:
        """V_q(n_q), n a scalar or (K,); 0 at n <= 1."""
        pairs = np.maximum(np.asarray(n, dtype=np.float64) - 1.0, 0.0)
        return np.asarray(self.slope * pairs / (1.0 + self.saturation * pairs), dtype=np.float64)

    def gain(self, n: ArrayLike) -> FloatArray:
        """V_q(n+1) - V_q(n) for n >= 1, in a form that does not cancel."""
        pairs = np.asarray(n, dtype=np.float64) - 1.0
        fall = (1.0 + self.saturation * pairs) * (1.0 + self.saturation * (pairs + 1.0))
        return np.asarray(self.slope / fall, dtype=np.float64)

    def size_at(self, price: float, lower: int, upper: int) -> IntArray:
        """(K,) the n in [lower, upper] that maximises V_q(n) - price n; the largest of several.

        The step to n pays where a >= price (1 + r (n-2)) (1 + r (n-1)), a quadratic in n - 3/2.
        """
        r = self.saturation
        with np.errstate(divide="ignore", over="ignore"):
            ratio = self.slope / price if price > 0 else np.where(self.slope > 0, np.inf, 0.0)
            best = np.floor(1.5 + (np.sqrt(ratio + r * r / 4.0) - 1.0) / r + 1e-12)
        return np.clip(best, lower, upper).astype(np.int64)

    def break_price(self, lower: int, upper: int) -> FloatArray:
        """(K,) the price a rollout above which the candidate is best left out: max over n of V_q(n) / n."""
        below = np.clip(np.floor(1.0 + 1.0 / np.sqrt(self.saturation)), lower, upper)
        at_below = self.at(below) / below
        np.minimum(below + 1.0, upper, out=below)
        return np.asarray(np.maximum(at_below, self.at(below) / below), dtype=np.float64)
