"""The gradient variance without the paper's two assumptions, learned from training's own gradient norms.

For rewards in {0, 1} and H the gradient of a rollout's summed log-probability (E H = 0), RLOO's variance is

    v(n) = (n-2) / (n (n-1)) V1 + 2 / (n (n-1)) V2
    V1 = p (1-p)^2 s+ + p^2 (1-p) s- - ||g||^2,      s+ = E[||H||^2 | success],  s- = E[||H||^2 | failure]
    V2 = p (1-p) (s+ + s-) / 2                       (exactly: the terms in ||g||^2, the squared mean gradient, cancel)

||g||^2 needs inner products between rollouts, which norms do not give; it is left out, so V1 is a second moment. It is
small where most of a rollout's gradient is noise. With s+ = s- the formula is the paper's. Dr. GRPO's variance is
((n-1)/n)^2 v(n). If H is the mean over tokens, E H = 0 holds only approximately, and so do both constants.

s+ and s- are predicted as shared curves of p (``outcome_moments_curves``) times a factor per prompt and outcome, and
used as far as past steps say they would have helped (``outcome_moments_trust``). Notation: B prompts in the batch,
C rollouts, M nodes of the posterior of p, z = ||H||^2.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from viprl._arrays import FloatArray, IntArray
from viprl.errors import CheckpointError, InvalidInputError
from viprl.variance.base import Realised, VarianceModel, batch_size, check_sizes, is_curve
from viprl.variance.outcome_moments_curves import OutcomeCurves
from viprl.variance.outcome_moments_factors import PromptFactors
from viprl.variance.outcome_moments_groups import GroupSummary, unbiased_constants
from viprl.variance.outcome_moments_trust import CANDIDATES, Trust, TrustRecord, mix, relative_costs

if TYPE_CHECKING:
    from viprl.feedback.rewards import Rewards
    from viprl.prediction.base import Prediction

CONVEX_FROM = {"rloo": 2, "dr_grpo": 4}
"""From here on the curves fall and are convex for all V1 >= 0 and 2 V2 >= V1, which always hold."""


class OutcomeMoments(VarianceModel):
    """Learned gradient variance; ``allocator.allocate`` uses it through ``bind``.

    Args:
        estimator: "rloo" or "dr_grpo".
        keep: factor per step by which old observations of the shared curves and of the trust count less.
        keep_visit: the same per visit of a prompt, for its own factors.
        margin: standard errors by which a learned variance must have beaten the paper's formula before it is used.
        min_group_size, max_group_ratio: bounds of the would-be allocations by which candidates are judged; the upper
            bound is the ratio times the mean group size.

    Raises:
        InvalidInputError: an argument out of its range.
    """

    learns = True

    def __init__(
        self,
        *,
        estimator: str = "rloo",
        keep: float = 0.95,
        keep_visit: float = 0.85,
        margin: float = 0.5,
        min_group_size: int = 3,
        max_group_ratio: float = 4.0,
        curve_scale: float = 1.5,
        curve_length: float = 2.0,
    ) -> None:
        if estimator not in CONVEX_FROM:
            raise InvalidInputError(f"estimator must be one of {tuple(CONVEX_FROM)}, but got {estimator!r}")
        for name, value in (("keep", keep), ("keep_visit", keep_visit)):
            if not 0 < value <= 1:
                raise InvalidInputError(f"0 < {name} <= 1 must hold, but got {value}")
        if min_group_size < 2 or max_group_ratio <= 1 or margin < 0:
            raise InvalidInputError(
                "min_group_size >= 2, max_group_ratio > 1 and margin >= 0 must hold, but got "
                f"{min_group_size}, {max_group_ratio}, {margin}"
            )
        self._estimator = estimator
        self.name = f"outcome_moments_{estimator}"
        self.convex_from: int | None = CONVEX_FROM[estimator]
        self._settings: dict[str, Any] = {
            "estimator": estimator,
            "keep": keep,
            "keep_visit": keep_visit,
            "margin": margin,
            "min_group_size": min_group_size,
            "max_group_ratio": max_group_ratio,
            "curve_scale": curve_scale,
            "curve_length": curve_length,
        }
        self._curves = OutcomeCurves(keep=keep, scale=curve_scale, length=curve_length)
        self._factors = PromptFactors(keep=keep, keep_visit=keep_visit)
        self._trust = TrustRecord(keep=keep, margin=margin)
        self._steps = 0

    @property
    def estimator(self) -> str:
        """The estimator whose variance is learned."""
        return self._estimator

    @property
    def taught(self) -> bool:
        """True from the first norm on."""
        return not self._curves.empty

    # ---- prediction ----

    @property
    def trust(self) -> Trust:
        """Which mixture of the paper's and the learned variance is in use."""
        return self._trust.choice()

    def moments(
        self, prediction: Prediction, prompt_ids: Sequence[Hashable] | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """(V1, V2), each (B,), as learned, in units of the mean squared norm; without ids, of prompts never seen."""
        p, weights = _posterior(prediction)
        failure, success = self._curves.values(p)
        if prompt_ids is not None:
            factors = self._factors.predict(prompt_ids)
            failure, success = failure * factors[:, :1], success * factors[:, 1:]
        spread = p * (1 - p)
        first = spread * ((1 - p) * success + p * failure)
        second = spread * (success + failure) / 2
        return (first * weights).sum(axis=1), (second * weights).sum(axis=1)

    def bind(self, prompt_ids: Sequence[Hashable]) -> BoundOutcomeMoments:
        """The model of these B prompts in this order; it knows their own factors and stays as it is."""
        return BoundOutcomeMoments(self, tuple(prompt_ids))

    def constants(
        self, prediction: Prediction, prompt_ids: Sequence[Hashable] | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """(V1, V2) as used for allocating: mixed with the paper's formula as far as ``trust`` says."""
        paper = np.asarray(prediction.bernoulli_variance, dtype=np.float64)
        trust = self.trust
        if self._curves.empty or (trust.blend == 0 and trust.exponent == 1):
            return paper, paper
        first, second = self.moments(prediction, prompt_ids)
        used = mix(paper, first, trust.blend, trust.exponent)
        # the shape of the curve in n (V2 against V1) is mixed as far as the level is
        ratio = np.divide(second, first, out=np.ones_like(first), where=first > 0)
        return used, used * np.maximum(ratio, 0.5) ** trust.blend

    def variance(self, prediction: Prediction | ArrayLike, n: ArrayLike) -> FloatArray:
        """v(n) of prompts without history: n (B,) or scalar -> (B,); n (K,) with K != B, or (1, K) -> (B, K)."""
        return BoundOutcomeMoments(self, None).variance(prediction, n)

    def curve(self, prediction: Prediction | ArrayLike, sizes: ArrayLike) -> FloatArray:
        """(B, K) values of v at the sizes (K,), for prompts without history."""
        return BoundOutcomeMoments(self, None).curve(prediction, sizes)

    def realised(self, rewards: Rewards, sizes: IntArray, squared_norms: FloatArray | None = None) -> Realised:
        """v(n) from unbiased V1 and V2 of the rewards and norms themselves; by the formula while there are no norms."""
        if squared_norms is None or not np.nansum(squared_norms) > 0:
            return super().realised(rewards, sizes)
        first, second = unbiased_constants(rewards, squared_norms / np.nanmean(squared_norms))
        values = self.value_at(first, second, sizes.astype(np.float64))
        return Realised(values, values[:, None] * values[None])

    def value_at(self, first: FloatArray, second: FloatArray, n: FloatArray) -> FloatArray:
        """v(n) of the constants V1 and V2; all arrays alike, or broadcasting."""
        with np.errstate(divide="ignore", invalid="ignore"):
            value = ((n - 2) * first + 2 * second) / (n * (n - 1))
            if self._estimator == "dr_grpo":
                value = np.where(n == 1, 0.0, ((n - 1) / n) ** 2 * value)
            else:  # one rollout has no leave-one-out baseline
                value = np.where(n == 1, np.where(second > 0, np.inf, 0.0), value)
        return np.asarray(value, dtype=np.float64)

    # ---- learning ----

    def learn(
        self,
        prompt_ids: Sequence[Hashable],
        prediction: Prediction,
        group_sizes: ArrayLike,
        rewards: ArrayLike,
        squared_norms: ArrayLike,
    ) -> None:
        """Learn from one step's rollouts.

        Args:
            prompt_ids: B prompts.
            prediction: of those prompts, made before the step.
            group_sizes: (B,) planned sizes, with sum C.
            rewards: (C,) in {0, 1}, or in {-1, 1}, in plan order; NaN where missing.
            squared_norms: (C,) squared norms of the rollouts' gradients, in the same units at every step; NaN where
                unknown (advantage zero, or not measured).

        Raises:
            InvalidInputError: shapes that do not fit, other rewards, or negative norms. Nothing is changed then.
        """
        sizes = np.asarray(group_sizes, dtype=np.int64)
        values = np.asarray(rewards, dtype=np.float64).copy()
        z = np.asarray(squared_norms, dtype=np.float64)
        if len(prompt_ids) != len(sizes) or len(prediction) != len(sizes):
            raise InvalidInputError(
                f"ids, prediction and group sizes must be of one batch, but got lengths "
                f"{len(prompt_ids)}, {len(prediction)}, {len(sizes)}"
            )
        if values.shape != (int(sizes.sum()),) or z.shape != values.shape:
            raise InvalidInputError(
                f"rewards and norms must have one entry per rollout ({int(sizes.sum())}), but got shapes "
                f"{values.shape}, {z.shape}"
            )
        values[values == -1] = 0.0
        if not np.isin(values[~np.isnan(values)], (0.0, 1.0)).all():
            raise InvalidInputError("rewards must be binary, {0, 1} or {-1, 1}, to learn gradient moments by outcome")
        if np.isinf(z).any() or (z[~np.isnan(z)] < 0).any():
            raise InvalidInputError("squared norms must be finite and non-negative, or NaN where unknown")
        self._take_in(prompt_ids, prediction, GroupSummary.of(sizes, values, z))

    def _take_in(self, prompt_ids: Sequence[Hashable], prediction: Prediction, groups: GroupSummary) -> None:
        nodes, weights = _posterior(prediction)
        if not self._curves.empty:  # judge yesterday's predictions before learning
            truth = groups.unbiased_v1()
            known = np.isfinite(truth)
            if known.sum() > 1 and truth[known].sum() > 0:
                paper = np.asarray(prediction.bernoulli_variance, dtype=np.float64)[known]
                learned = self.moments(prediction, prompt_ids)[0][known]
                mean_size = float(groups.present[known].mean())
                low = min(float(self._settings["min_group_size"]), mean_size)
                high = max(mean_size * float(self._settings["max_group_ratio"]), mean_size + 1)
                candidates = np.stack([mix(paper, learned, *candidate) for candidate in CANDIDATES])
                costs = relative_costs(candidates, truth[known], mean_size, low, high)
                self._trust.update(costs, float(truth[known].sum()))
        row, outcome = np.nonzero(groups.counts > 0)
        if len(row):
            # what this step's rewards say about p places its norms on the curves more sharply than the forecast
            sharper = _with_outcomes(nodes[row], weights[row], groups.successes[row], groups.present[row])
            z = groups.means[row, outcome]
            weight = groups.weights[row, outcome]
            failure, success = self._curves.values(nodes[row])
            expected = (np.where(outcome[:, None] == 1, success, failure) * sharper).sum(axis=1)
            if not self._curves.empty:
                relative = z / np.exp(self._curves.level) / expected
                own = [prompt_ids[int(i)] for i in row]
                self._factors.update(own, outcome, relative, weight, self._curves.dispersion)
            self._curves.update(outcome, nodes[row], sharper * weight[:, None], z)
        self._steps += 1

    def metrics(self) -> dict[str, float]:
        """For a logger: the mixture in use, the ratios to uniform that its candidates would have had, the evidence."""
        ratio = self._trust.ratios()
        trust = self.trust
        return {
            "learned_variance_blend": trust.blend,
            "learned_variance_exponent": trust.exponent,
            "learned_variance_ratio": float(ratio[CANDIDATES.index((1.0, 1.0))]),
            "paper_variance_ratio": float(ratio[CANDIDATES.index((0.0, 1.0))]),
            "gradient_norm_dispersion": self._curves.dispersion,
        }

    # ---- state ----

    def state_dict(self) -> dict[str, Any]:
        """Everything the next step needs."""
        return {
            "settings": dict(self._settings),
            "steps": self._steps,
            "curves": self._curves.state_dict(),
            "factors": self._factors.state_dict(),
            "trust": self._trust.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state_dict()``.

        Raises:
            CheckpointError: the state is of other settings.
        """
        if dict(state["settings"]) != self._settings:
            raise CheckpointError(
                f"the saved settings must be the model's, but got {dict(state['settings'])}, {self._settings}"
            )
        self._steps = int(state["steps"])
        self._curves.load_state_dict(state["curves"])
        self._factors.load_state_dict(state["factors"])
        self._trust.load_state_dict(state["trust"])

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self._settings.items())
        return f"OutcomeMoments({settings})"


class BoundOutcomeMoments(VarianceModel):
    """``OutcomeMoments`` for the prompts of one batch: a VarianceModel."""

    def __init__(self, model: OutcomeMoments, prompt_ids: tuple[Hashable, ...] | None) -> None:
        self._model, self._ids = model, prompt_ids
        self.name, self.convex_from = model.name, model.convex_from

    def variance(self, prediction: Prediction | ArrayLike, n: ArrayLike) -> FloatArray:
        """v(n): n (B,) or scalar -> (B,); n (K,) with K != B, or (1, K) -> (B, K)."""
        sizes = check_sizes(n, whole=False)
        if is_curve(sizes, batch_size(prediction)):
            return self.curve(prediction, sizes.reshape(-1))
        first, second = self._constants(prediction)
        return self._model.value_at(first, second, np.asarray(sizes, dtype=np.float64))

    def curve(self, prediction: Prediction | ArrayLike, sizes: ArrayLike) -> FloatArray:
        """(B, K) values at the sizes (K,)."""
        first, second = self._constants(prediction)
        n = check_sizes(sizes, whole=False).reshape(-1).astype(np.float64)
        return self._model.value_at(first[:, None], second[:, None], n[None, :])

    def realised(self, rewards: Rewards, sizes: IntArray, squared_norms: FloatArray | None = None) -> Realised:
        """See ``OutcomeMoments.realised``: prompts' names do not enter a measurement."""
        return self._model.realised(rewards, sizes, squared_norms)

    def _constants(self, prediction: Any) -> tuple[FloatArray, FloatArray]:
        _check(prediction)
        if self._ids is not None and len(self._ids) != len(prediction):
            raise InvalidInputError(
                f"the prediction must be of the {len(self._ids)} bound prompts, but it has {len(prediction)}"
            )
        return self._model.constants(prediction, self._ids)


def _posterior(prediction: Prediction) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights (B, M) of the posterior of p."""
    _check(prediction)
    return prediction.nodes()


def _check(prediction: Any) -> None:
    if not hasattr(prediction, "nodes"):
        raise InvalidInputError("learned variances need a Prediction (the distribution of p), but got a plain array")


def _with_outcomes(nodes: FloatArray, weights: FloatArray, k: FloatArray, n: FloatArray) -> FloatArray:
    """Posterior weights (O, M) after k successes in n more rollouts."""
    p = np.clip(nodes, 1e-6, 1 - 1e-6)
    with np.errstate(divide="ignore"):
        logs = np.log(weights) + k[:, None] * np.log(p) + (n - k)[:, None] * np.log1p(-p)
    logs -= logs.max(axis=1, keepdims=True)
    values = np.exp(logs)
    return np.asarray(values / values.sum(axis=1, keepdims=True), dtype=np.float64)
