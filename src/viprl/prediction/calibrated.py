"""The default predictor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numpy.typing import ArrayLike

from viprl.prediction.base import PromptId
from viprl.prediction.baselines import DiscountedBeta
from viprl.prediction.recent import check_embeddings


class CalibratedPredictor(DiscountedBeta):
    """First version: own history only; the embeddings, texts and side information are not read yet."""

    def __init__(
        self,
        embeddings: ArrayLike | None = None,
        *,
        prompt_ids: Iterable[PromptId] | None = None,
        texts: Sequence[str] | None = None,
        side_information: Mapping[str, ArrayLike] | ArrayLike | None = None,
    ) -> None:
        super().__init__(prompt_ids)
        self._embeddings: Any = None if embeddings is None else check_embeddings(embeddings, len(self._table))
