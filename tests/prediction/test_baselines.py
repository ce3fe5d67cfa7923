"""Baselines against formulas written out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from viprl.errors import CheckpointError, InvalidInputError, UnknownPromptError
from viprl.prediction import DiscountedBeta, GlobalMean, LastRate, MovingAverage, Ridge

IDS = [f"p{i}" for i in range(30)]


def test_discounted_beta_follows_its_recursion():
    predictor, a, b = DiscountedBeta(), 0.3, 0.45
    for k, n in [(3, 8), (0, 8), (5, 7)]:
        predictor.observe(["x"], [k], [n])
        a, b = 0.8 * a + 0.2 * 0.3 + k, 0.8 * b + 0.2 * 0.45 + n - k
    found, law = predictor.predict(["x"]), stats.beta(a, b)
    assert found.mean[0] == pytest.approx(law.mean(), rel=1e-12)
    assert found.bernoulli_variance[0] == pytest.approx(law.mean() * (1 - law.mean()) - law.var(), rel=1e-12)
    assert found.expect(lambda p: p**8)[0] == pytest.approx(law.expect(lambda p: p**8), rel=0.03)  # 64 slices


def test_discounted_beta_without_forgetting_is_the_conjugate_posterior():
    predictor = DiscountedBeta(IDS, prior=(1.0, 2.0), keep=1.0)
    predictor.observe(["p3", "p4"], [2, 1], [8, 4])
    predictor.observe(["p3"], [3], [4])
    assert predictor.predict(["p3", "p4", "p5"]).mean == pytest.approx([6 / 15, 2 / 7, 1 / 3])


def test_last_rate_and_global_mean():
    last, world = LastRate(), GlobalMean()
    for predictor in (last, world):
        predictor.observe(["a", "b"], [1, 4], [4, 4])
        predictor.observe(["a"], [2], [4])
    assert last.predict(["a", "b", "c"]).mean == pytest.approx([0.5, 1.0, 0.35])
    assert world.predict(["a", "c"]).mean == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("own", [False, True])
def test_moving_average_keeps_the_most_recent_samples(own):
    predictor = MovingAverage(window=3, per_prompt=own)
    assert predictor.predict(["a"]).mean[0] == 0.5
    for prompt, k in [("a", 0), ("b", 8), ("a", 4), ("c", 2)]:
        predictor.observe([prompt], [k], [8])
    mean = predictor.predict(["a", "b", "new"]).mean
    pooled = (1 + 0.5 + 0.25) / 3
    assert mean == pytest.approx([0.5, 1.0, pooled] if own else [pooled] * 3)


def test_ridge_equals_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 5)).astype(np.float32)
    predictor = Ridge(x, prompt_ids=IDS, window=40, penalty=0.7)
    rows, rates = [], []
    for _ in range(4):
        batch = np.sort(rng.choice(30, 16, replace=False))
        k = rng.binomial(8, 0.5, 16)
        predictor.observe([IDS[i] for i in batch], k, np.full(16, 8))
        rows.extend(batch)
        rates.extend(k / 8)
    oracle = linear_model.Ridge(alpha=0.7).fit(x[rows[-40:]].astype(float), rates[-40:])
    assert predictor.predict(IDS).mean == pytest.approx(np.clip(oracle.predict(x.astype(float)), 0, 1), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_repeated_ids_add_up_in_any_order(triples, random):
    triples = [(f"p{i}", min(k, n), n) for i, k, n in triples]
    total: dict[str, list[int]] = {}
    for prompt, k, n in triples:
        total.setdefault(prompt, [0, 0])
        total[prompt][0] += k
        total[prompt][1] += n
    apart, together = DiscountedBeta(), DiscountedBeta()
    random.shuffle(triples)
    apart.observe(*zip(*triples, strict=True))
    together.observe(list(total), [v[0] for v in total.values()], [v[1] for v in total.values()])
    a, b = apart.predict(list(total)), together.predict(list(total))
    assert np.array_equal(a.mean, b.mean) and np.array_equal(a.cold, b.cold)
    assert np.array_equal(a.cold, [v[1] == 0 for v in total.values()])


@pytest.mark.parametrize(
    ("successes", "rollouts", "rule"),
    [
        ([9], [8], "0 <= successes <= rollouts"),
        ([np.nan], [8], "finite"),
        ([1, 1], [8, 8], "shape"),
        ([-1], [8], "0 <="),
    ],
)
def test_impossible_counts_are_refused_and_leave_no_trace(successes, rollouts, rule):
    predictor = DiscountedBeta()
    with pytest.raises(InvalidInputError, match=rule):
        predictor.observe(["a"], successes, rollouts)
    assert predictor.state_dict()["table"]["prompt_ids"] == []


def test_unknown_ids_are_errors_where_ids_are_fixed():
    predictor = DiscountedBeta(IDS)
    with pytest.raises(UnknownPromptError, match="'zzz'"):
        predictor.predict(["p1", "zzz"])
    with pytest.raises(UnknownPromptError):
        predictor.observe(["zzz"], [0], [0])


def test_states_of_other_predictors_settings_and_prompts_are_refused():
    state = DiscountedBeta(IDS).state_dict()
    with pytest.raises(CheckpointError, match="LastRate"):
        LastRate(IDS).load_state_dict(state)
    with pytest.raises(CheckpointError, match="settings"):
        DiscountedBeta(IDS, keep=0.5).load_state_dict(state)
    with pytest.raises(CheckpointError, match="prompt_ids"):
        DiscountedBeta(IDS[::-1]).load_state_dict(state)


def test_merge_keeps_what_both_know():
    old = DiscountedBeta(["a", "b", "c"])
    old.observe(["a", "b"], [8, 0], [8, 8])
    new = DiscountedBeta(["c", "b", "d"])
    assert new.merge_state(old.state_dict()) == {"new": ["d"], "gone": ["a"], "kept": ["b", "c"]}
    assert new.predict(["b"]).mean[0] == old.predict(["b"]).mean[0]
    assert list(new.predict(["c", "b", "d"]).cold) == [True, False, True]
