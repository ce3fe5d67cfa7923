"""Telling broken steps from bad luck."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from viprl.prediction.trust import trust_in_counts


def step(seed, size=128, n=8, zeroed=0.0):
    rng = np.random.default_rng(seed)
    p = rng.beta(0.3, 0.45, size)
    p = np.clip(p, 0.02, 0.98)
    k = rng.binomial(n, p) * (rng.random(size) >= zeroed)
    return stats.binom.logpmf(k, n, p), k.astype(float), np.full(size, float(n))


@pytest.mark.parametrize("seed", range(20))
def test_ordinary_steps_are_trusted(seed):
    logp, k, n = step(seed)
    found = trust_in_counts(logp, k, n, np.ones(128, bool))
    assert found.broken < 0.01 and found.trust.min() > 0.99


@pytest.mark.parametrize("zeroed", [0.5, 0.8, 1.0])
def test_zeroed_rewards_are_distrusted_and_the_others_kept(zeroed):
    logp, k, n = step(0, zeroed=zeroed)
    found = trust_in_counts(logp, k, n, np.ones(128, bool))
    assert found.broken > 0.99
    assert (found.trust[k > 0] > 0.99).all()
    surprising = (k == 0) & (logp < -5)
    assert found.trust[surprising].max() < 0.1


def test_a_verifier_that_always_says_yes_is_found_too():
    _logp, _k, n = step(1)
    p = np.clip(np.random.default_rng(1).beta(0.3, 0.45, 128), 0.02, 0.98)
    found = trust_in_counts(stats.binom.logpmf(n, n, p), n, n, np.ones(128, bool))
    assert found.broken > 0.99 and found.trust.mean() < 0.2


def test_new_prompts_are_no_evidence_without_a_record():
    p = np.full(128, 0.4)
    logp, zero, n = stats.binom.logpmf(0, 8, p), np.zeros(128), np.full(128, 8.0)
    cold = np.zeros(128, bool)
    assert trust_in_counts(logp, zero, n, cold).broken < 0.01, "a data set of impossible problems looks like this"
    assert trust_in_counts(logp, zero, n, cold, experienced=True).broken > 0.99


def test_a_small_batch_of_failures_is_bad_luck():
    p = np.full(4, 0.3)
    found = trust_in_counts(stats.binom.logpmf(0, 8, p), np.zeros(4), np.full(4, 8.0), np.ones(4, bool))
    assert found.broken < 0.5
