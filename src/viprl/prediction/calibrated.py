"""The default predictor: text, side information and own history in one posterior."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from viprl._arrays import BoolArray, FloatArray, IntArray
from viprl.prediction.base import Prediction, PromptId
from viprl.prediction.confidence import Confidence
from viprl.prediction.counts import Counts
from viprl.prediction.drift import Drift
from viprl.prediction.feature_predictor import FeaturePredictor
from viprl.prediction.grid import NODES, LogitGrid
from viprl.prediction.prompts import BASE_PRIOR, PromptDistribution
from viprl.prediction.regression import GroupedLogistic, Linear
from viprl.prediction.trust import log_binomial_coefficient, trust_in_counts

RATE_KEEP = 0.8  # share of old counts in the rate that a prompt contributes to the regression
PATIENCE = 50  # consecutive broken steps after which they are taken for the new reality
EXPERIENCE = 256  # prompts seen before new prompts count as evidence of a broken step
FEW = 1024  # prompts
PART = 8192  # prompts evaluated at a time, so that many candidates stay within the processor's cache
TINY = 1e-300


class Evaluation(NamedTuple):
    """What is believed of B prompts (rows (B,) ascending, unique) before this step's rollouts."""

    rows: IntArray
    cold: BoolArray  # (B,)
    features: FloatArray  # (B, F)
    linear: Linear  # the regression's view, without the prompt's own history
    expected: FloatArray  # (B,) the mean that follows from it
    density: FloatArray  # (B, M) posterior over the grid


class CalibratedPredictor(FeaturePredictor):
    """Calibrated predictions from the first visit on; the default.

    The posterior of a prompt's success probability is a density over M = 40 logits. Four parts, all learned online
    from binomial counts, with no setting to tune:

    1. *Before the first rollout* (``GroupedLogistic``): Bayesian logistic regression on the embedding's principal
       components, countable properties and reduced hashed TF-IDF of the text, and a basis of each column of side
       information; the precision of each block is learned by marginal likelihood, so a useless block is shrunk away.
       How far the result is believed is learned from how it did on prompts not seen before (``Confidence``).
    2. *Spread* (``PromptDistribution``): the mean becomes a density whose shape is learned from the posteriors of
       prompts with similar means; this decides E[p(1-p)].
    3. *Own history*: Bayes' rule with the binomial likelihood of each visit, so evidence grows with n_q. When the
       regression changes its mind about a known prompt, the old expectation is divided out and the new one put in;
       the regression is read without the prompt's own contribution (leave-one-out), so nothing counts twice.
    4. *Movement* (``Drift``): between visits the logit walks at random; the walk's deviation and mean shift are
       weighted by how well they predicted so far. The memory of a prompt that waits longer than usual fades: what
       was dead long ago is not believed dead for ever.

    Steps in which many known prompts show no success at all (or nothing but success) are recognised as broken and
    not learned from (``trust_in_counts``), unless they last longer than 50 steps.

    A step costs O(B F^2 + F^3), F < 260 without side information, whatever N is. Memory: the embeddings as given
    (a memory map stays one; only the batch's rows are read), 230 bytes a prompt of text features if texts are given,
    184 bytes a visited prompt. Set-up reads all texts once, about .3 ms each.

    Args:
        embeddings: (N, D), row r belongs to prompt_ids[r]; or None.
        prompt_ids: the N known prompts; None for an open world, where own history alone is used.
        texts: N prompt texts, or None.
        side_information: numeric columns, {name: (N,)} or (N, S), NaN where missing; for example another model's pass
            rate or a difficulty label.

    Raises:
        InvalidInputError: arrays that do not fit prompt_ids, or infinite values.
    """

    columns: Mapping[str, tuple[DTypeLike, tuple[int, ...]]] = {
        "density": (np.float32, (NODES,)),  # posterior after the last visit
        "expected": (np.float32, ()),  # the regression's mean that it contains
        "weight": (np.float32, ()),  # the prompt's working observation in the regression
        "target": (np.float32, ()),
        "successes": (np.float32, ()),  # discounted counts behind that observation
        "rollouts": (np.float32, ()),
        "seen": (np.int32, ()),  # step of the last visit
    }
    _regression: GroupedLogistic

    def __init__(
        self,
        embeddings: ArrayLike | None = None,
        *,
        prompt_ids: Iterable[PromptId] | None = None,
        texts: Sequence[str] | None = None,
        side_information: Mapping[str, ArrayLike] | ArrayLike | None = None,
    ) -> None:
        super().__init__(embeddings, prompt_ids, texts, side_information, {})
        self._grid = LogitGrid()
        self._prompts = PromptDistribution(self._grid)
        self._drift = Drift(self._grid)
        self._confidence = Confidence()
        self._global = {"prompts": 0, "broken_run": 0, "broken": 0.0, "steps": 0}
        self._last: Evaluation | None = None

    def _make_regression(self, groups: Mapping[str, slice], width: int) -> GroupedLogistic:
        return GroupedLogistic(groups, width, BASE_PRIOR[0] / sum(BASE_PRIOR))

    def predict(self, ids: Sequence[PromptId]) -> Prediction:
        rows = self._table.rows(ids)
        # Always in ascending order, so that the result is the same to the last bit whatever the order of the ids.
        unique, place = np.unique(rows, return_inverse=True)
        parts = [self._evaluate(unique[at : at + PART]) for at in range(0, max(1, len(unique)), PART)]
        density, cold = (
            (parts[0].density, parts[0].cold)
            if len(parts) == 1
            else (np.concatenate([part.density for part in parts]), np.concatenate([part.cold for part in parts]))
        )
        if not np.array_equal(place, np.arange(len(density))):
            density, cold = density[place], cold[place]
        return Prediction.from_nodes(np.broadcast_to(self._grid.p, density.shape), density, cold=cold)

    def _evaluate(self, rows: IntArray) -> Evaluation:
        """Remembers its last result: observe() usually follows predict() on the same prompts."""
        if self._last is not None and np.array_equal(self._last.rows, rows):
            return self._last
        cold = self._table.cold(rows)
        features = self._features.rows(rows)
        linear = self._linear(rows, features)
        expected = self._confidence.blend(linear.rate())
        density = self._prompts.density(expected)
        warm = ~cold
        if warm.any():
            known = rows[warm]
            own = self._drift.move(self._table["density"][known].astype(np.float64))
            contained = self._prompts.density(self._table["expected"][known].astype(np.float64))
            own *= density[warm] / np.maximum(contained, TINY)
            own /= own.sum(axis=1, keepdims=True)
            visits = self._drift.visits_worth(self._waited(known))
            if visits.max() > 1:
                own = self._drift.revert(own, density[warm], visits)
            density[warm] = own
        self._last = Evaluation(rows, cold, features, linear, expected, density)
        return self._last

    def _learn(self, counts: Counts) -> None:
        rows, k, n = counts
        table, before = self._table, self._evaluate(rows)
        self._last = None
        log_like = self._grid.log_likelihood(k, n)
        peak = log_like.max(axis=1)
        like = np.exp(log_like - peak[:, None])
        evidence = np.maximum((before.density * like).sum(axis=1), TINY)
        trust = self._trust(np.log(evidence) + peak + log_binomial_coefficient(k, n), counts, before.cold)
        # A distrusted count leaves the prediction as it was.
        posterior = before.density * ((trust / evidence)[:, None] * like + (1 - trust)[:, None])
        cold, warm = before.cold, ~before.cold
        if warm.any():
            waited = self._waited(rows[warm])
            usual = warm.copy()
            usual[warm] = self._drift.visits_worth(waited) == 1  # the walk is learned per visit
            self._drift.learn(table["density"][rows[usual]].astype(np.float64), like[usual], trust[usual])
            self._drift.learn_interval(waited)
        if cold.any():
            self._prompts.learn(posterior[cold], before.expected[cold], trust[cold])
        table["density"][rows] = posterior
        table["expected"][rows] = before.expected
        self._global["steps"] += 1
        table["seen"][rows] = self._global["steps"]
        self._learn_features(counts, before, trust)
        if cold.any():
            self._judge_features(before, like, trust)

    def _waited(self, rows: IntArray) -> FloatArray:
        """(B,) steps since the last visit of known prompts, this one included."""
        return np.asarray(self._global["steps"] + 1 - self._table["seen"][rows], dtype=np.float64)

    def _judge_features(self, before: Evaluation, like: FloatArray, trust: FloatArray) -> None:
        """Score the regression on the step's new prompts: as predicted or, while few prompts are known (above all at
        the very first step, where nothing was predicted), as it would predict each from all the others."""
        cold, linear = before.cold, before.linear
        if self._global["prompts"] < FEW:
            linear = self._linear(before.rows, before.features)
        self._confidence.score(linear.rate()[cold], self._prompts, like[cold], trust[cold])

    def _trust(self, log_predictive: FloatArray, counts: Counts, cold: BoolArray) -> FloatArray:
        """(B,) probability that each prompt's counts are real."""
        experienced = self._global["prompts"] >= EXPERIENCE
        self._global["prompts"] += int(cold.sum())
        found = trust_in_counts(log_predictive, counts.successes, counts.rollouts, ~cold, experienced)
        self._global["broken"] = found.broken
        self._global["broken_run"] = self._global["broken_run"] + 1 if found.broken > 0.5 else 0
        return np.ones(len(cold)) if self._global["broken_run"] > PATIENCE else found.trust

    def _learn_features(self, counts: Counts, before: Evaluation, trust: FloatArray) -> None:
        """Replace each prompt's working observation in the regression by its latest."""
        table = self._table
        keep = 1 - (1 - RATE_KEEP) * trust
        old_k = table["successes"][counts.rows].astype(np.float64)
        old_n = table["rollouts"][counts.rows].astype(np.float64)
        # Rounded as they are stored, so that what is added now can be taken out exactly at the next visit.
        k = (keep * old_k + trust * counts.successes).astype(np.float32).astype(np.float64)
        n = (keep * old_n + trust * counts.rollouts).astype(np.float32).astype(np.float64)
        table["successes"][counts.rows], table["rollouts"][counts.rows] = k, n
        use = n > 0.5  # nothing to say while only distrusted counts are there
        rows, rate, n = counts.rows[use], k[use] / n[use], n[use]
        fresh = old_n[use] <= 0.5
        old_rate = np.where(fresh, 0.0, old_k[use] / np.maximum(old_n[use], 0.5))
        self._confidence.count(float((rate - old_rate).sum()), float(fresh.sum()))
        linear = Linear(before.linear.mean[use], before.linear.variance[use])
        new = before.cold[use] & (trust[use] > 0.5)
        if new.any():
            self._regression.learn_correlation(Linear(linear.mean[new], linear.variance[new]), rate[new], n[new])
        self._exchange(rows, before.features[use], *self._regression.linearise(linear, rate, n))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "prompts": self._prompts.state(),
            "drift": self._drift.state(),
            "confidence": self._confidence.state(),
        }

    def _load_models(self, state: Mapping[str, Any]) -> None:
        super()._load_models(state)
        self._prompts.load(state["prompts"])
        self._drift.load(state["drift"])
        self._confidence.load(state["confidence"])
        self._last = None

    def metrics(self) -> dict[str, float]:
        """Numbers of the model's state.

        drift_deviation, drift_shift: the logit's movement per visit, visit_interval: steps between visits;
        outage_probability of the last step and
        outage_steps in a row; feature_slope: how far the features are believed; prompt_correlation: share of the
        variance that features leave between prompts; precision_<block> of the regression, and regression_restarts.
        """
        return super().metrics() | {
            "drift_deviation": self._drift.deviation,
            "drift_shift": self._drift.shift,
            "visit_interval": self._drift.interval,
            "feature_slope": self._confidence.slope,
            "prompt_correlation": self._regression.correlation,
            "outage_probability": float(self._global["broken"]),
            "outage_steps": float(self._global["broken_run"]),
        }
