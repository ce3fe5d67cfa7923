"""Success probabilities on a fixed grid of logits.

Notation: M grid nodes, B prompts in the batch. A density is a row of M non-negative masses that sum to one.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from viprl._arrays import FloatArray

NODES = 40
HALF_WIDTH = 11.0  # logits; prompts that never succeed need nodes far out (p = 1.7e-5)
STRETCH = 2.0  # nodes are .3 apart in the middle and wider apart in the tails


class LogitGrid:
    """Nodes u (M,), their widths, p = sigmoid(u), log p, log(1 - p) and p(1-p)."""

    def __init__(self) -> None:
        t = np.linspace(-1.0, 1.0, NODES)
        self.u = HALF_WIDTH * np.sinh(STRETCH * t) / np.sinh(STRETCH)
        self.width = np.gradient(self.u)
        self.p = special.expit(self.u)
        self.log_p = special.log_expit(self.u)
        self.log_q = special.log_expit(-self.u)
        self.bernoulli_variance = self.p * special.expit(-self.u)

    def log_likelihood(self, successes: FloatArray, rollouts: FloatArray) -> FloatArray:
        """(B, M) binomial log likelihood of each node, without the coefficient."""
        result: FloatArray = successes[:, None] * self.log_p + (rollouts - successes)[:, None] * self.log_q
        return result
