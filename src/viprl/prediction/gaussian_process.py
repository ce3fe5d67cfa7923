"""Algorithm 1 of the paper (arXiv 2602.01601): a Gaussian process on the logits of the success rates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from scipy import linalg, special

from viprl._arrays import FloatArray
from viprl.errors import InvalidInputError
from viprl.prediction.base import Prediction, PromptId
from viprl.prediction.baselines import TablePredictor
from viprl.prediction.counts import Counts
from viprl.prediction.matrices import check_embeddings

BLOCK_ENTRIES = 4_000_000  # kernel entries formed at a time (32 MB)
MEDIAN_SAMPLE = 2048


class GaussianProcessPredictor(TablePredictor):
    """The paper's predictor, faithful, as the reference implementation.

    Latent g ~ GP(m, K) with K(x, x') = exp(-||x - x'||^2 / (2 h^2)) and p = sigmoid(g). After a step with observed
    g_hat = logit(clip(successes / rollouts, eps, 1 - eps)), prompts of the batch get m = g_hat and all others
    m + K_{.,B} K_{B,B}^{-1} (g_hat - m_B); the covariance stays the prior kernel. K_{.,B} is formed in blocks of
    rows from the embeddings, so the N x N kernel never exists: a step costs N B D time and N + block memory.

    Known weakness: the prediction is the plug-in sigmoid(m), without uncertainty; one rate of eight rollouts is
    believed to eps, and with small eps its extreme logit spreads to the neighbours. On real success rates the
    allocation is then worse than uniform (about twice its variance with eps = 1e-6). Use ``CalibratedPredictor``.

    Args:
        embeddings: (N, D), row r belongs to prompt_ids[r]; kept as given.
        prompt_ids: the N known prompts.
        bandwidth: h > 0, or None for the median pairwise distance (of 2,048 evenly spaced rows where N is larger).
        prior_mean: m at the start, a logit; a number or (N,).
        eps: rates are cut to [eps, 1 - eps] before the logit; the paper does not state its value.
        jitter: added to the diagonal of K_{B,B} for numerical reasons.
        noise: variance added to that diagonal on top; 0 in the paper.
    """

    columns: Mapping[str, tuple[DTypeLike, tuple[int, ...]]] = {}

    def __init__(
        self,
        embeddings: ArrayLike,
        *,
        prompt_ids: Iterable[PromptId],
        bandwidth: float | None = None,
        prior_mean: ArrayLike = 0.0,
        eps: float = 1e-6,
        jitter: float = 1e-6,
        noise: float = 0.0,
    ) -> None:
        if not 0 < eps < 0.5:
            raise InvalidInputError(f"0 < eps < 0.5 must hold, but got {eps}")
        if not (jitter >= 0 and noise >= 0):
            raise InvalidInputError(f"jitter, noise >= 0 must hold, but got (jitter={jitter}, noise={noise})")
        super().__init__(prompt_ids, {"eps": float(eps), "jitter": float(jitter), "noise": float(noise)})
        self._embeddings = check_embeddings(embeddings, len(self._table))
        h = median_distance(self._embeddings) if bandwidth is None else float(bandwidth)
        if not h > 0:
            raise InvalidInputError(f"bandwidth > 0 must hold, but got {h}")
        self._settings["bandwidth"] = h
        start = np.broadcast_to(np.asarray(prior_mean, np.float64), (len(self._table),))
        self._global = {"mean": start.copy()}

    def predict(self, ids: Sequence[PromptId]) -> Prediction:
        rows = self._table.rows(ids)
        return Prediction.point(special.expit(self._global["mean"][rows]), cold=self._table.cold(rows))

    def _learn(self, counts: Counts) -> None:
        mean, rows, eps = self._global["mean"], counts.rows, self._settings["eps"]
        target = special.logit(np.clip(counts.rates, eps, 1 - eps))
        batch = self._embeddings[rows].astype(np.float64)
        gram = rbf_kernel(batch, batch, self._settings["bandwidth"])
        gram[np.diag_indices_from(gram)] += self._settings["jitter"] + self._settings["noise"]
        weights = linalg.solve(gram, target - mean[rows], assume_a="pos")
        updated = mean.copy()
        for block in row_blocks(len(mean), len(rows)):
            x = self._embeddings[block].astype(np.float64)
            updated[block] += rbf_kernel(x, batch, self._settings["bandwidth"]) @ weights
        if self._settings["noise"] == 0:  # Algorithm 1, line by line: the batch takes g_hat itself
            updated[rows] = target
        self._global["mean"] = updated

    def merge_state(self, state: dict[str, Any]) -> dict[str, list[PromptId]]:
        """As for every predictor; prompts that are new here keep this predictor's prior mean."""
        fresh = self._global["mean"].copy()
        report = super().merge_state(state)
        old = {prompt_id: row for row, prompt_id in enumerate(state["table"]["prompt_ids"])}
        known = np.asarray(state["global"]["mean"], np.float64)
        for row, prompt_id in enumerate(self._table.index.ids):
            if prompt_id in old:
                fresh[row] = known[old[prompt_id]]
        self._global["mean"] = fresh
        return report


def rbf_kernel(x: FloatArray, y: FloatArray, bandwidth: float) -> FloatArray:
    """(A, B) matrix exp(-||x_i - y_j||^2 / (2 bandwidth^2)) for x (A, D), y (B, D)."""
    squared = (x * x).sum(axis=1)[:, None] + (y * y).sum(axis=1)[None, :] - 2 * (x @ y.T)
    np.maximum(squared, 0.0, out=squared)
    squared *= -0.5 / bandwidth**2
    result: FloatArray = np.exp(squared, out=squared)
    return result


def row_blocks(rows: int, width: int) -> list[slice]:
    """Slices of ``rows`` that keep a (block, width) matrix of doubles small."""
    size = max(1, BLOCK_ENTRIES // max(1, width))
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def median_distance(embeddings: NDArray[Any]) -> float:
    """The median heuristic: median distance between two different rows; 1 where all rows are equal."""
    count = len(embeddings)
    if count < 2:
        return 1.0
    pick = np.arange(count) if count <= MEDIAN_SAMPLE else np.linspace(0, count - 1, MEDIAN_SAMPLE).astype(np.int64)
    x = embeddings[pick].astype(np.float64)
    norms = (x * x).sum(axis=1)
    squared = norms[:, None] + norms[None, :] - 2 * (x @ x.T)
    distance = float(np.sqrt(max(0.0, np.median(squared[np.triu_indices(len(x), 1)]))))
    return distance if distance > 0 else 1.0
