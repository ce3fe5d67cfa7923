"""The two comparison predictors of the paper's ablation: both learn from the most recent samples only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from viprl._arrays import FloatArray
from viprl.errors import InvalidInputError
from viprl.prediction.base import Prediction, PromptId
from viprl.prediction.baselines import TablePredictor
from viprl.prediction.counts import Counts
from viprl.prediction.matrices import check_embeddings

WINDOW = 1024


class MovingAverage(TablePredictor):
    """Mean success rate of the ``window`` most recent samples (one sample = one prompt's rate in one step).

    Args:
        prompt_ids: known prompts, or None for an open world.
        window: number of samples kept (the paper: 1,024).
        per_prompt: False gives every prompt the mean of the whole window; True gives a prompt with samples in the
            window the mean of its own. The paper does not say which it used.
        initial: prediction before any sample.
    """

    def __init__(
        self,
        prompt_ids: Iterable[PromptId] | None = None,
        *,
        window: int = WINDOW,
        per_prompt: bool = False,
        initial: float = 0.5,
    ) -> None:
        _check_window(window)
        if not 0 <= initial <= 1:
            raise InvalidInputError(f"0 <= initial <= 1 must hold, but got {initial}")
        super().__init__(prompt_ids, {"window": int(window), "per_prompt": bool(per_prompt), "initial": float(initial)})
        self._global = {"rows": np.zeros(0, np.int64), "rates": np.zeros(0)}

    def predict(self, ids: Sequence[PromptId]) -> Prediction:
        rows, recent, rates = self._table.rows(ids), self._global["rows"], self._global["rates"]
        mean = np.full(len(rows), rates.mean() if len(rates) else self._settings["initial"])
        if self._settings["per_prompt"] and len(recent):
            unique, place = np.unique(recent, return_inverse=True)
            own = np.bincount(place, weights=rates) / np.bincount(place)
            at = np.minimum(np.searchsorted(unique, rows), len(unique) - 1)
            mean = np.where(unique[at] == rows, own[at], mean)
        return Prediction.point(np.clip(mean, 0.0, 1.0), cold=self._table.cold(rows))

    def _learn(self, counts: Counts) -> None:
        _push(self._global, self._settings["window"], rows=counts.rows, rates=counts.rates)


class Ridge(TablePredictor):
    """Ridge regression of the success rate on the embedding, with intercept, on the most recent samples.

    Minimises sum_i (rate_i - c - x_i w)^2 + penalty ||w||^2 over the window; predictions are cut to [0, 1].

    Args:
        embeddings: (N, D), row r belongs to prompt_ids[r].
        prompt_ids: the N known prompts.
        window: number of samples kept (the paper: 1,024).
        penalty: > 0, on w but not on the intercept.
        initial: prediction before any sample.
    """

    def __init__(
        self,
        embeddings: ArrayLike,
        *,
        prompt_ids: Iterable[PromptId],
        window: int = WINDOW,
        penalty: float = 1.0,
        initial: float = 0.5,
    ) -> None:
        _check_window(window)
        if not penalty > 0:
            raise InvalidInputError(f"penalty > 0 must hold, but got {penalty}")
        if not 0 <= initial <= 1:
            raise InvalidInputError(f"0 <= initial <= 1 must hold, but got {initial}")
        super().__init__(prompt_ids, {"window": int(window), "penalty": float(penalty), "initial": float(initial)})
        self._embeddings = check_embeddings(embeddings, len(self._table))
        self._global = {
            "rows": np.zeros(0, np.int64),
            "rates": np.zeros(0),
            "weights": np.zeros(self._embeddings.shape[1]),
            "intercept": float(initial),
        }

    def predict(self, ids: Sequence[PromptId]) -> Prediction:
        rows = self._table.rows(ids)
        x = self._embeddings[rows].astype(np.float64)
        mean = np.clip(self._global["intercept"] + x @ self._global["weights"], 0.0, 1.0)
        return Prediction.point(mean, cold=self._table.cold(rows))

    def _learn(self, counts: Counts) -> None:
        _push(self._global, self._settings["window"], rows=counts.rows, rates=counts.rates)
        x = self._embeddings[self._global["rows"]].astype(np.float64)
        weights, intercept = ridge_fit(x, self._global["rates"], self._settings["penalty"])
        self._global.update(weights=weights, intercept=intercept)


def ridge_fit(x: FloatArray, y: FloatArray, penalty: float) -> tuple[FloatArray, float]:
    """Weights (D,) and intercept that minimise ||y - c - x w||^2 + penalty ||w||^2; x (S, D), y (S,)."""
    centre, level = x.mean(axis=0), float(y.mean())
    xc = x - centre
    gram = xc.T @ xc
    gram[np.diag_indices_from(gram)] += penalty
    weights: FloatArray = linalg.solve(gram, xc.T @ (y - level), assume_a="pos")
    return weights, level - float(centre @ weights)


def _push(store: dict[str, Any], window: int, **columns: ArrayLike) -> None:
    for name, values in columns.items():
        store[name] = np.concatenate([store[name], np.asarray(values)])[-window:]


def _check_window(window: int) -> None:
    if window < 1:
        raise InvalidInputError(f"window >= 1 must hold, but got {window}")
