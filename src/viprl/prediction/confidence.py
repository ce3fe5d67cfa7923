"""How far to believe the features: between the average prompt and the regression, learned from new prompts.

The regression's marginal likelihood is an approximation, and with few prompts and many features it believes too much.
Here the blends logit m_b = logit m_0 + b (logit m - logit m_0), m_0 the mean rate of all prompts, are weighted by how
well each predicted prompts that it had not seen (prequential Bayesian model averaging with forgetting).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import special

from viprl._arrays import FloatArray
from viprl.prediction.prompts import BASE_PRIOR, PromptDistribution

SLOPES = np.array([0.0, 0.25, 0.5, 0.75, 1.0, 1.25])
START = np.log([0.1, 0.1, 0.1, 0.1, 0.5, 0.1])  # the regression is probably right
FORGET = 0.9  # of the evidence, a step: with more prompts the regression deserves more belief
START_WEIGHT = 2.0  # prompts that the mean rate before any rollout counts like
EDGE = 1e-4


class Confidence:
    """State: evidence (S,) of the slopes, and the sum and number of the prompts' rates behind m_0."""

    def __init__(self) -> None:
        self.evidence = START.copy()
        mean = BASE_PRIOR[0] / sum(BASE_PRIOR)
        self.rates = np.array([START_WEIGHT * mean, START_WEIGHT])

    @property
    def slope(self) -> float:
        """Learned belief in the features: 0 none, 1 as the regression says."""
        return float(special.softmax(self.evidence) @ SLOPES)

    def blend(self, mean: FloatArray) -> FloatArray:
        """(B,) means after weighing, from the regression's means (B,)."""
        result: FloatArray = self._candidates(mean) @ special.softmax(self.evidence)
        return result

    def score(self, mean: FloatArray, prompts: PromptDistribution, likelihood: FloatArray, trust: FloatArray) -> None:
        """Take in new prompts: the regression's means (B,), likelihoods (B, M) and trust (B,)."""
        self.evidence = FORGET * self.evidence + (1 - FORGET) * START
        for i, candidate in enumerate(self._candidates(mean).T):
            evidence = (prompts.density(candidate) * likelihood).sum(axis=1)
            self.evidence[i] += trust @ np.log(np.maximum(evidence, 1e-300))
        self.evidence -= self.evidence.max()

    def count(self, gained: float, prompts: float) -> None:
        """Change of the sum of the prompts' rates, and number of prompts added."""
        self.rates += np.array([gained, prompts])

    def _candidates(self, mean: FloatArray) -> FloatArray:
        centre = special.logit(np.clip(self.rates[0] / self.rates[1], EDGE, 1 - EDGE))
        away = special.logit(np.clip(mean, EDGE, 1 - EDGE)) - centre
        result: FloatArray = special.expit(centre + away[:, None] * SLOPES)
        return result

    def state(self) -> dict[str, Any]:
        return {"evidence": self.evidence.copy(), "rates": self.rates.copy()}

    def load(self, state: Mapping[str, Any]) -> None:
        self.evidence = np.array(state["evidence"], np.float64)
        self.rates = np.array(state["rates"], np.float64)
