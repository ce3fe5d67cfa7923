"""What the two predictors with a regression on the prompts' features share.

N known prompts, B prompts in the batch, F features. Each prompt enters the regression once, with its latest working
observation (weight, target), which lies in the table, so that it can be taken out again at the next visit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from viprl._arrays import FloatArray, IntArray
from viprl.errors import InvalidInputError
from viprl.prediction.base import PromptId
from viprl.prediction.baselines import TablePredictor
from viprl.prediction.features import PromptFeatures
from viprl.prediction.matrices import check_embeddings
from viprl.prediction.regression import GroupedRegression, Linear

logger = logging.getLogger("viprl")


class FeaturePredictor(TablePredictor):
    """Ids, features and regression, and their state.

    Numerical trouble never outlives its step: where the regression's posterior cannot be computed, it starts again
    from its prior (own histories stay), says so once, and counts it in the metric ``regression_restarts``. A state
    saved in trouble is mended in the same way when it is loaded.

    Subclasses have the columns ``weight`` and ``target``, and implement ``_make_regression``.
    """

    def __init__(
        self,
        embeddings: ArrayLike | None,
        prompt_ids: Iterable[PromptId] | None,
        texts: Sequence[str] | None,
        side_information: Mapping[str, ArrayLike] | ArrayLike | None,
        settings: Mapping[str, Any],
    ) -> None:
        super().__init__(prompt_ids, settings)
        if not self._table.index.fixed and not (embeddings is None and texts is None and side_information is None):
            if embeddings is not None:
                check_embeddings(embeddings, len(embeddings) if isinstance(embeddings, Sequence | np.ndarray) else 0)
            raise InvalidInputError("embeddings, texts and side_information need prompt_ids, but got prompt_ids=None")
        self._features = PromptFeatures(len(self._table), embeddings, texts, side_information)
        self._settings["features"] = self._features.width
        self._regression = self._make_regression(self._features.groups, self._features.width)
        self._restarts = 0

    def _make_regression(self, groups: Mapping[str, slice], width: int) -> GroupedRegression:
        raise NotImplementedError

    def _linear(self, rows: IntArray, features: FloatArray) -> Linear:
        """The regression's view of B prompts (rows (B,), features (B, F)) without their own contributions."""
        return self._regression.without(
            self._regression.predict(features),
            self._table.take("weight", rows).astype(np.float64),
            self._table.take("target", rows).astype(np.float64),
        )

    def _exchange(self, rows: IntArray, features: FloatArray, weight: FloatArray, target: FloatArray) -> None:
        """Put each prompt's new working observation in the place of its old one."""
        table = self._table
        old_weight = table["weight"][rows].astype(np.float64)
        old_pull = old_weight * table["target"][rows]
        # Rounded as they are stored, so that what is added now can be taken out exactly at the next visit.
        table["weight"][rows], table["target"][rows] = weight, target
        new_weight = table["weight"][rows].astype(np.float64)
        pull = new_weight * table["target"][rows] - old_pull
        if not self._regression.learn(features, new_weight - old_weight, pull):
            self._restart()

    def _restart(self) -> None:
        self._regression.restart()
        for name in ("weight", "target"):
            self._table[name][:] = 0
        if not self._restarts:
            logger.warning("the regression on the prompts' features lost its numbers and starts again from its prior")
        self._restarts += 1

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "features": self._features.state(),
            "regression": self._regression.state(),
            "restarts": self._restarts,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._features.check(state["features"])  # before anything changes
        super().load_state_dict(state)
        self._load_models(state)

    def merge_state(self, state: dict[str, Any]) -> dict[str, list[PromptId]]:
        self._features.check(state["features"])
        report = super().merge_state(state)
        self._load_models(state)
        return report

    def _load_models(self, state: Mapping[str, Any]) -> None:
        self._restarts = int(state.get("restarts", 0))
        self._features.load(state["features"])
        if not self._regression.load(state["regression"]) or len(self._table.sick()):
            self._restart()
            self._table.forget(self._table.sick())  # what is sick beyond the regression's own columns

    def metrics(self) -> dict[str, float]:
        """precision_<block> of the regression, and regression_restarts after numerical trouble."""
        precisions = zip(self._features.groups, self._regression.alpha, strict=True)
        return (
            super().metrics()
            | {"regression_restarts": float(self._restarts)}
            | {f"precision_{name}": float(alpha) for name, alpha in precisions}
        )
