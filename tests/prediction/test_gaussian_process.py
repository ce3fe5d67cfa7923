"""Algorithm 1 against itself written with the full kernel."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import spatial, special

from viprl.errors import InvalidInputError
from viprl.prediction import GaussianProcessPredictor, gaussian_process

IDS = list(range(60))


def full_kernel_algorithm(x, h, eps, jitter, steps):
    """Algorithm 1, line by line, with the N x N matrix."""
    kernel = np.exp(-(spatial.distance.squareform(spatial.distance.pdist(x)) ** 2) / (2 * h * h))
    mean = np.zeros(len(x))
    for batch, rates in steps:
        target = special.logit(np.clip(rates, eps, 1 - eps))
        gram = kernel[np.ix_(batch, batch)] + jitter * np.eye(len(batch))
        moved = mean + kernel[:, batch] @ np.linalg.inv(gram) @ (target - mean[batch])
        moved[batch] = target
        mean = moved
    return special.expit(mean)


@pytest.mark.parametrize("bandwidth", [None, 1.7])
def test_equals_the_full_kernel(monkeypatch, bandwidth):
    monkeypatch.setattr(gaussian_process, "BLOCK_ENTRIES", 100)  # many blocks
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 4))
    predictor = GaussianProcessPredictor(x, prompt_ids=IDS, bandwidth=bandwidth, eps=0.01)
    steps = []
    for _ in range(3):
        batch = np.sort(rng.choice(60, 12, replace=False))
        k = rng.binomial(8, 0.4, 12)
        predictor.observe(batch.tolist(), k, np.full(12, 8))
        steps.append((batch, k / 8))
    h = bandwidth or np.median(spatial.distance.pdist(x))
    assert predictor.predict(IDS).mean == pytest.approx(full_kernel_algorithm(x, h, 0.01, 1e-6, steps), abs=1e-6)


def test_noise_gives_the_textbook_posterior_mean():
    gp = pytest.importorskip("sklearn.gaussian_process")
    rng = np.random.default_rng(2)
    x = rng.normal(size=(40, 3))
    predictor = GaussianProcessPredictor(
        x, prompt_ids=IDS[:40], bandwidth=1.3, eps=0.05, noise=1.0, jitter=0.0, prior_mean=-0.5
    )
    k = rng.binomial(8, 0.4, 15)
    predictor.observe(IDS[:15], k, np.full(15, 8))
    oracle = gp.GaussianProcessRegressor(gp.kernels.RBF(1.3), alpha=1.0, optimizer=None)
    oracle.fit(x[:15], special.logit(np.clip(k / 8, 0.05, 0.95)) + 0.5)
    assert special.logit(predictor.predict(IDS[:40]).mean) == pytest.approx(oracle.predict(x) - 0.5, abs=1e-9)


def test_is_plug_in_and_starts_at_the_prior_mean():
    found = GaussianProcessPredictor(np.eye(3), prompt_ids="abc", prior_mean=[0.0, 1.0, -1.0]).predict("abc")
    assert found.mean == pytest.approx(special.expit([0.0, 1.0, -1.0]))
    assert found.bernoulli_variance == pytest.approx(found.mean * (1 - found.mean))


def test_merge_keeps_the_prior_mean_of_new_prompts():
    old = GaussianProcessPredictor(np.eye(2), prompt_ids="ab", bandwidth=1.0)
    old.observe(["a"], [8], [8])
    new = GaussianProcessPredictor(np.eye(2), prompt_ids="ac", bandwidth=1.0)
    assert new.merge_state(old.state_dict()) == {"new": ["c"], "gone": ["b"], "kept": ["a"]}
    assert new.predict("ac").mean == pytest.approx([1 - 1e-6, 0.5])


@pytest.mark.parametrize("bad", [{"eps": 0.0}, {"eps": 0.5}, {"bandwidth": 0.0}, {"jitter": -1.0}])
def test_settings_are_checked(bad):
    with pytest.raises(InvalidInputError):
        GaussianProcessPredictor(np.eye(2), prompt_ids="ab", **bad)


def test_embeddings_must_fit_the_ids():
    with pytest.raises(InvalidInputError, match="one row a prompt"):
        GaussianProcessPredictor(np.eye(3), prompt_ids="ab")
