"""Appendix E of the paper: predicting the variance of real-valued rewards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike
from scipy import special

from viprl._arrays import FloatArray, IntArray
from viprl.errors import InvalidInputError
from viprl.prediction.base import Prediction, PromptId
from viprl.prediction.counts import per_prompt
from viprl.prediction.feature_predictor import FeaturePredictor
from viprl.prediction.level import VarianceLevel
from viprl.prediction.regression import GroupedRegression, Linear

SPREAD_START, SPREAD_WEIGHT = 1.0, 50.0
SMALLEST, LARGEST = 0.02, 100.0  # relative variances that the regression works with
STEP = 10.0  # largest step of a working observation away from the prediction, on the regression's scale
RATIO = 100.0  # a group's variance counts as at most this multiple of the level
HUGE = 1e130  # rewards beyond are cut, so that no sum overflows
ROUNDING = 1e-14  # a standard deviation below this share of the mean reward is rounding: the rewards agree


class GroupedSoftplus(GroupedRegression):
    """Regression of a prompt's variance relative to the level of all prompts: v = softplus(x w).

    Quasi-likelihood: a sample variance s^2 of n rewards has mean v and variance v^2 (kappa + 2 / (n - 1)): the
    sampling variance of a normal sample, around prompts that differ among themselves with relative variance kappa.
    """

    def __init__(self, groups: Mapping[str, slice], width: int) -> None:
        super().__init__(groups, width, float(inverse_softplus(np.array(1.0))), (SPREAD_START, SPREAD_WEIGHT))

    @property
    def spread(self) -> float:
        return self.ratio(0.05, 20.0)

    def linearise(self, linear: Linear, observed: FloatArray, degrees: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Working observations: a Newton step from the prediction, of at most ``STEP``."""
        v = relative_variance(linear)
        slope = -np.expm1(-v)  # d softplus(g) / dg = 1 - exp(-v)
        weight = (slope / v) ** 2 / (self.spread + 2 / degrees)
        return weight, inverse_softplus(v) + np.minimum((observed - v) / slope, STEP)

    def learn_spread(self, linear: Linear, observed: FloatArray, degrees: FloatArray) -> None:
        """Moments of the errors on prompts that were new: E (s^2 / v - 1)^2 = kappa + 2 (1 + kappa) / (n - 1)."""
        excess = np.minimum((observed / relative_variance(linear) - 1) ** 2, 100.0) - 2 / degrees
        self.add_moments(float(excess.sum()), float((1 + 2 / degrees).sum()))


class RewardVariancePredictor(FeaturePredictor):
    """Expected reward variance per prompt, for rewards that are real numbers.

    As in Appendix E the variance is v = softplus(g) with g a Gaussian process over the prompts' features (here in
    its weight-space form: linear in the features, with learned precisions). Three departures from the paper. The
    observation is not softplus^-1(s^2), which is minus infinity when all rewards of a group agree, but s^2 itself,
    linearised at the prediction and weighted by its sampling variance. A prompt's own sample variances enter by an
    inverse-gamma posterior,

        E[v | own history] = (c v(x) + sum (n - 1) s^2) / (c + sum (n - 1)),   c = 2 + 2 / kappa,

    with old sums fading by ``keep`` at each visit; so a group with s^2 = 0 lowers the prediction by what its n - 1
    degrees of freedom are worth and never to zero. And all of it is relative to a level that follows the rewards'
    spread (``VarianceLevel``): each s^2 is remembered as a multiple of the level at its visit, so when rewards grow
    or shrink for all prompts alike, by whatever factor, predictions follow at once and keep their proportions.

    ``prediction.reward_variance`` is what DrGRPO and RLOO use. ``prediction.mean`` is the mean reward cut to [0, 1],
    for display; there is no success probability.

    Args:
        embeddings, prompt_ids, texts, side_information: as for ``CalibratedPredictor``.
        keep: share of a prompt's old sums kept at a visit, in [0, 1].
    """

    reward_kind = "real"
    columns: Mapping[str, tuple[DTypeLike, tuple[int, ...]]] = {
        "squares": (np.float64, ()),  # faded sum of (n - 1) s^2, relative to the level at the visit
        "degrees": (np.float64, ()),  # faded sum of n - 1
        "rewards": (np.float64, ()),  # faded sum of rewards
        "rollouts": (np.float64, ()),
        "weight": (np.float64, ()),
        "target": (np.float64, ()),
    }
    _regression: GroupedSoftplus

    def __init__(
        self,
        embeddings: ArrayLike | None = None,
        *,
        prompt_ids: Iterable[PromptId] | None = None,
        texts: Sequence[str] | None = None,
        side_information: Mapping[str, ArrayLike] | ArrayLike | None = None,
        keep: float = 0.8,
    ) -> None:
        if not 0 <= keep <= 1:
            raise InvalidInputError(f"0 <= keep <= 1 must hold, but got {keep}")
        super().__init__(embeddings, prompt_ids, texts, side_information, {"keep": float(keep)})
        self._level = VarianceLevel()
        self._global = {"reward_sum": 0.0, "reward_count": 0.0}

    def _make_regression(self, groups: Mapping[str, slice], width: int) -> GroupedSoftplus:
        return GroupedSoftplus(groups, width)

    def predict(self, ids: Sequence[PromptId]) -> Prediction:
        rows, place = np.unique(self._table.rows(ids), return_inverse=True)
        variance = self._relative(rows, self._linear(rows, self._features.rows(rows))) * self._level.value
        rewards, rollouts = self._table.take("rewards", rows), self._table.take("rollouts", rows)
        overall = (self._global["reward_sum"] + 0.5) / (self._global["reward_count"] + 1)
        mean = np.clip((rewards + overall) / (rollouts + 1), 0.0, 1.0)[place]
        return Prediction(
            mean,
            mean * (1 - mean),
            quadrature=lambda: (mean[:, None].copy(), np.ones((len(mean), 1))),
            cold=self._table.cold(rows)[place],
            reward_variance=variance[place],
        )

    def _relative(self, rows: IntArray, linear: Linear) -> FloatArray:
        """(B,) expected variances, relative to the level: the regression's and the prompts' own."""
        strength = 2 + 2 / self._regression.spread
        squares, degrees = self._table.take("squares", rows), self._table.take("degrees", rows)
        found: FloatArray = (strength * softplus(linear.mean) + squares) / (strength + degrees)
        return found

    def observe(self, ids: Sequence[PromptId], successes: ArrayLike, rollouts: ArrayLike) -> None:
        """Success counts as rewards in {0, 1}: mean k/n and variance k (n - k) / (n (n - 1))."""
        counts = self._table.receive(ids, successes, rollouts)
        known = [self._table.index.ids[int(row)] for row in counts.rows]
        k, n = counts.successes, counts.rollouts
        variances = np.divide(k * (n - k), n * (n - 1), out=np.zeros(len(n)), where=n > 1)
        self.observe_rewards(known, k / n, variances, n)

    def observe_rewards(
        self, ids: Sequence[PromptId], means: ArrayLike, variances: ArrayLike, rollouts: ArrayLike
    ) -> None:
        """Learn from one step.

        Args:
            ids: B prompts; repeated ids are pooled.
            means: (B,) mean reward; read where rollouts > 0.
            variances: (B,) sample variance with ddof 1; read where rollouts > 1 (NaN elsewhere is fine).
            rollouts: (B,) rewards present.

        Raises:
            InvalidInputError: wrong length, negative variance or rollouts, or a needed value that is not finite.
        """
        n = per_prompt("rollouts", rollouts, len(ids))
        if len(n) and n.min() < 0:
            raise InvalidInputError(f"rollouts >= 0 must hold, but got {n.min():g}")
        mean = per_prompt("means", _where_needed(means, n > 0, len(ids)), len(ids))
        s2 = per_prompt("variances", _where_needed(variances, n > 1, len(ids)), len(ids))
        if len(s2) and s2.min() < 0:
            raise InvalidInputError(f"variances >= 0 must hold, but got {s2.min():g}")
        live = np.flatnonzero(n > 0)
        self._table.index.rows(ids)  # unknown ids are errors, also without rollouts
        if not len(live):
            return
        rows = self._table.index.add([ids[int(i)] for i in live])
        self._table.reserve(len(self._table))
        unique, place = np.unique(rows, return_inverse=True)
        n, mean, s2 = n[live], mean[live], s2[live]
        mean = np.clip(mean, -HUGE, HUGE)
        s2 = np.where(np.sqrt(s2) > ROUNDING * np.abs(mean), np.minimum(s2, HUGE**2), 0.0)
        total = np.bincount(place, n).astype(np.float64)
        pooled = np.bincount(place, n * mean) / total
        # within groups, plus between the groups of a prompt that occurs more than once
        within = np.bincount(place, np.maximum(n - 1, 0) * s2)
        squares = within + np.bincount(place, n * (mean - pooled[place]) ** 2)
        self._learn_moments(unique, total, pooled, np.where(total > 1, squares, 0.0))
        self._table["visits"][unique] += 1

    def _learn_moments(self, rows: IntArray, n: FloatArray, mean: FloatArray, squares: FloatArray) -> None:
        table, keep = self._table, self._settings["keep"]
        cold, x = table.cold(rows), self._features.rows(rows)
        linear = self._linear(rows, x)
        degrees = np.maximum(n - 1, 0.0)
        self._level.learn(self._relative(rows, linear), squares, degrees, self._regression.spread)
        squares = np.minimum(squares / self._level.value, RATIO * degrees)
        for name, value in {"squares": squares, "degrees": degrees, "rewards": n * mean, "rollouts": n}.items():
            table[name][rows] = keep * table[name][rows] + value
        self._global["reward_sum"] += float((n * mean).sum())
        self._global["reward_count"] += float(n.sum())
        use = table["degrees"][rows] > 0.5
        if not (self._level.known and use.any()):
            return
        rows, linear = rows[use], Linear(linear.mean[use], linear.variance[use])
        known = table["degrees"][rows]
        observed = table["squares"][rows] / known
        new = cold[use]
        if new.any():
            self._regression.learn_spread(Linear(linear.mean[new], linear.variance[new]), observed[new], known[new])
        self._exchange(rows, x[use], *self._regression.linearise(linear, observed, known))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"level": self._level.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(_with_level(state))

    def merge_state(self, state: dict[str, Any]) -> dict[str, list[PromptId]]:
        return super().merge_state(_with_level(state))

    def _load_models(self, state: Mapping[str, Any]) -> None:
        super()._load_models(state)
        self._level.load(state["level"])

    def metrics(self) -> dict[str, float]:
        return super().metrics() | {
            "variance_spread": self._regression.spread,
            "variance_scale": self._level.value if self._level.known else 0.0,
        }


def relative_variance(linear: Linear) -> FloatArray:
    """(B,) the regression's variances, within the range that it works with."""
    return np.clip(softplus(linear.mean), SMALLEST, LARGEST)


def softplus(g: FloatArray) -> FloatArray:
    """log(1 + exp(g)), without overflow."""
    return np.asarray(-special.log_expit(-g), np.float64)


def inverse_softplus(v: FloatArray) -> FloatArray:
    """log(exp(v) - 1) for v > 0, without overflow."""
    return np.asarray(v + np.log(-np.expm1(-v)), np.float64)


def _where_needed(values: ArrayLike, needed: Any, length: int) -> FloatArray:
    array = np.asarray(values, np.float64)
    return np.where(needed, array, 0.0) if array.shape == (length,) else array


def _with_level(state: dict[str, Any]) -> dict[str, Any]:
    """States from before the level moved have a fixed one, ``scale``, and squares in the rewards' own units."""
    if "scale" not in state.get("global", {}):
        return state
    rest = {name: value for name, value in state["global"].items() if name != "scale"}
    table, level = state["table"], state["global"]["scale"]
    squares = np.asarray(table["columns"]["squares"]) / (level or 1.0)
    table = table | {"columns": table["columns"] | {"squares": squares}}
    return state | {"global": rest, "table": table, "level": {"value": level}}
