"""How far a prompt's counts are believed: many prompts at once may show no success (or nothing but success).

B prompts in the batch. In a broken step each prompt's rewards are, with probability c, all replaced by the same
value; the step's c is inferred from the prompts whose rates are known, and each prompt's counts are then trusted with
the probability that they are real. This weighs single counts inside one predictor, also where only a part of a step is
broken; ``viprl.feedback.OutageDetector`` keeps a whole step from everything that learns, whatever the predictor.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from viprl._arrays import BoolArray, FloatArray

SHARES = (0.5, 0.8, 0.95, 1.0)
PRIOR = 1e-6  # of a step being broken
NEW_WEIGHT = 0.25  # of a new prompt's evidence: prompts of one step may be alike in ways the features do not show


class CountTrust(NamedTuple):
    """trust (B,): probability that a prompt's counts are real; broken: probability that the step is broken."""

    trust: FloatArray
    broken: float


def trust_in_counts(
    log_predictive: FloatArray,
    successes: FloatArray,
    rollouts: FloatArray,
    informed: BoolArray,
    experienced: bool = False,
) -> CountTrust:
    """Compare 'all is well' with broken steps.

    Args:
        log_predictive: (B,) log probability of the counts that were seen, under the predictions.
        successes, rollouts: (B,).
        informed: (B,) prompts whose prediction rests on own history; they are the evidence.
        experienced: whether predictions for new prompts have a record. Only then are new prompts evidence too, and
            only where all prompts of the step agree in 0 or 1: such a step has no gradient, so nothing is lost by
            ignoring it.
    """
    evidence = informed.astype(np.float64)
    if experienced and ((successes == 0).all() or (successes == rollouts).all()):
        evidence = np.where(informed, 1.0, NEW_WEIGHT)
    real = np.minimum(log_predictive, 0.0)
    hypotheses = [(0.0, np.zeros(len(real), bool))]
    hypotheses += [(c, successes == 0) for c in SHARES] + [(c, successes == rollouts) for c in SHARES]
    score = np.empty(len(hypotheses))
    trust = np.empty((len(hypotheses), len(real)))
    for i, (c, replaced) in enumerate(hypotheses):
        genuine = real + np.log1p(-c) if c < 1 else np.full(len(real), -np.inf)
        total = np.logaddexp(genuine, np.where(replaced, np.log(c) if c > 0 else -np.inf, -np.inf))
        # A single contradiction must not rule out c = 1 for ever: stray counts cost 12 nats each.
        total = np.maximum(total, -12.0 + np.minimum(real, 0.0))
        score[i] = evidence @ total + np.log(1 - PRIOR if c == 0 else PRIOR / (2 * len(SHARES)))
        trust[i] = np.where(replaced, np.exp(np.minimum(genuine - total, 0.0)), 1.0)
    weights = special.softmax(score)
    return CountTrust(np.clip(weights @ trust, 0.0, 1.0), float(1 - weights[0]))


def log_binomial_coefficient(successes: FloatArray, rollouts: FloatArray) -> FloatArray:
    """(B,) log of rollouts choose successes; real counts allowed."""
    result: FloatArray = (
        special.gammaln(rollouts + 1) - special.gammaln(successes + 1) - special.gammaln(rollouts - successes + 1)
    )
    return result
