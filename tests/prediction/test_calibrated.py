"""The default predictor: what it promises, and that each of its parts earns its place, on simulated prompts."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from viprl.errors import CheckpointError, InvalidInputError, UnknownPromptError
from viprl.prediction import CalibratedPredictor
from viprl.testing import PredictorConformance
from viprl.testing.checks import same, same_prediction

N, D = 240, 8
IDS = [f"p{i}" for i in range(N)]


def world(seed=0, strength=1.5, noise=1.0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, D)).astype(np.float32)
    u = -0.4 + x @ rng.normal(size=D) * strength / np.sqrt(D) + noise * rng.normal(size=N)
    return rng, x, special.expit(u)


def run(predictor, rng, p, steps, batch=48, n=8, broken=()):
    """One full-information epoch after another; returns the losses of cold and of warm predictions."""
    losses = {True: [], False: []}
    order = np.concatenate([rng.permutation(N) for _ in range(1 + steps * batch // N)])
    for t in range(steps):
        rows = order[t * batch : (t + 1) * batch]
        rows = np.unique(rows)
        ids = [IDS[i] for i in rows]
        found = predictor.predict(ids)
        k = rng.binomial(n, p[rows])
        q = np.clip(found.mean, 1e-3, 1 - 1e-3)
        loss = -(p[rows] * np.log(q) + (1 - p[rows]) * np.log(1 - q))
        for cold in (True, False):
            losses[cold].extend(loss[found.cold == cold])
        predictor.observe(ids, np.zeros(len(rows)) if t in broken else k, np.full(len(rows), n))
    return {cold: float(np.mean(values)) for cold, values in losses.items() if values}


def best(p):
    return float(-(p * np.log(p) + (1 - p) * np.log(1 - p)).mean())


def test_embeddings_help_cold_prompts_and_shuffled_ones_do_no_harm():
    rng, x, p = world(noise=0.3)
    losses = {}
    for name, given_x in {"text": x, "shuffled": x[rng.permutation(N)], "none": None}.items():
        losses[name] = run(CalibratedPredictor(given_x, prompt_ids=IDS), np.random.default_rng(1), p, 5)[True]
    assert losses["text"] < losses["none"] - 0.03
    assert losses["shuffled"] < losses["none"] + 0.02


def test_own_history_converges_to_the_truth():
    rng, x, p = world()
    losses = run(CalibratedPredictor(x, prompt_ids=IDS), rng, p, 60)
    assert losses[False] < best(p) + 0.03


def test_side_information_with_missing_values_helps_and_its_scale_does_not_matter():
    rng, _, p = world(noise=2.0)
    rate = rng.binomial(16, p) / 16
    rate[::4] = np.nan
    found = {}
    for name, column in {"none": None, "rate": rate, "scaled": 1000 * rate - 7}.items():
        side = None if column is None else {"other model": column}
        predictor = CalibratedPredictor(prompt_ids=IDS, side_information=side)
        found[name] = run(predictor, np.random.default_rng(3), p, 5)[True]
    assert found["rate"] < found["none"] - 0.05
    assert found["scaled"] < found["none"] - 0.04


def test_more_rollouts_weigh_more():
    few, many = CalibratedPredictor(prompt_ids=IDS), CalibratedPredictor(prompt_ids=IDS)
    few.observe(["p0"], [4], [4])
    many.observe(["p0"], [16], [16])
    assert many.predict(["p0"]).mean[0] > few.predict(["p0"]).mean[0] + 0.02
    assert many.predict(["p0"]).bernoulli_variance[0] < few.predict(["p0"]).bernoulli_variance[0]


def test_an_outage_is_recognised_and_not_learned():
    rng, x, p = world()
    predictor = CalibratedPredictor(x, prompt_ids=IDS)
    run(predictor, rng, p, 10)
    before = predictor.predict(IDS).mean
    for _ in range(20):
        rows = rng.choice(N, 48, replace=False)
        predictor.observe([IDS[i] for i in rows], np.zeros(48), np.full(48, 8))
    assert predictor.metrics()["outage_probability"] > 0.99
    assert predictor.metrics()["outage_steps"] == 20
    assert np.abs(predictor.predict(IDS).mean - before).mean() < 0.05
    run(predictor, rng, p, 1)
    assert predictor.metrics()["outage_steps"] == 0


def test_a_new_reality_is_accepted_in_the_end():
    rng, x, p = world()
    predictor = CalibratedPredictor(x, prompt_ids=IDS)
    run(predictor, rng, p, 10)
    for t in range(80):
        rows = np.arange(48) + 48 * (t % 5)
        predictor.observe([IDS[i] for i in rows], np.zeros(48), np.full(48, 8))
    assert predictor.predict(IDS).mean.mean() < 0.05


def test_drift_is_reported_and_followed():
    rng, x, p = world()
    still, moving = CalibratedPredictor(x, prompt_ids=IDS), CalibratedPredictor(x, prompt_ids=IDS)
    run(still, np.random.default_rng(5), p, 60)
    u = special.logit(p)
    for _ in range(12):
        u = u + 0.6 * rng.normal(size=N)
        run(moving, rng, special.expit(u), 5)
    assert moving.metrics()["drift_deviation"] > still.metrics()["drift_deviation"] + 0.2


def test_e_p_one_minus_p_is_calibrated():
    rng = np.random.default_rng(6)
    p = rng.beta(0.3, 0.5, N)
    predictor = CalibratedPredictor(prompt_ids=IDS)
    run(predictor, rng, p, 8)
    found = predictor.predict(IDS)
    assert found.bernoulli_variance.mean() == pytest.approx((p * (1 - p)).mean(), rel=0.15)
    assert found.mean.mean() == pytest.approx(p.mean(), abs=0.03)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_counts_add_up_and_order_does_not_matter(data):
    ids = data.draw(st.lists(st.sampled_from(IDS[:10]), min_size=1, max_size=14))
    n = data.draw(st.lists(st.integers(0, 9), min_size=len(ids), max_size=len(ids)))
    k = [data.draw(st.integers(0, m)) for m in n]
    order = data.draw(st.permutations(range(len(ids))))
    _, x, _ = world()
    a, b, c = (CalibratedPredictor(x, prompt_ids=IDS) for _ in range(3))
    a.observe(ids, k, n)
    b.observe([ids[i] for i in order], [k[i] for i in order], [n[i] for i in order])
    unique = sorted(set(ids))
    c.observe(
        unique,
        [sum(v for i, v in zip(ids, k, strict=True) if i == u) for u in unique],
        [sum(v for i, v in zip(ids, n, strict=True) if i == u) for u in unique],
    )
    asked = data.draw(st.permutations(IDS[:12]))
    found = a.predict(IDS[:12])
    assert same_prediction(found, b.predict(IDS[:12])) and same_prediction(found, c.predict(IDS[:12]))
    assert np.array_equal(a.predict(asked).mean, found.mean[[IDS.index(i) for i in asked]]), "bit for bit"
    assert (found.bernoulli_variance <= found.mean * (1 - found.mean) + 1e-12).all()
    assert found.expect(lambda q: q * (1 - q)) == pytest.approx(found.bernoulli_variance)


def everything(rows=range(N), extra=0):
    """A predictor with all kinds of features for some of the world's prompts, and ``extra`` new ones."""
    _, x, p = world()
    use = np.r_[list(rows), np.zeros(extra, int)]
    return CalibratedPredictor(
        x[use],
        prompt_ids=[IDS[i] for i in rows] + [f"new {i}" for i in range(extra)],
        texts=[f"Solve problem {i} with {i % 7} steps, x_{i} = {i * i}?" for i in use],
        side_information={"rate": np.where(p > 0.3, p, np.nan)[use]},
    )


def test_predictions_in_between_leave_the_future_the_same_to_the_last_bit():
    _, _, p = world()
    quiet, asked = everything(), everything()
    for t in range(6):
        rows = np.random.default_rng(t).choice(N, 40, replace=False)
        ids, k = [IDS[i] for i in rows], np.random.default_rng(t).binomial(8, p[rows])
        asked.predict(ids[:7])
        asked.predict(ids[::-1])
        quiet.observe(ids, k, np.full(40, 8))
        asked.observe(ids, k, np.full(40, 8))
    assert same(quiet.state_dict(), asked.state_dict())


def test_restored_state_continues_bit_for_bit():
    _, _, p = world()
    first = everything()
    run(first, np.random.default_rng(0), p, 7)
    saved = copy.deepcopy(first.state_dict())
    second = everything()
    second.load_state_dict(saved)
    assert same(saved, second.state_dict())
    for predictor in (first, second):
        run(predictor, np.random.default_rng(1), p, 5)
    assert same(first.state_dict(), second.state_dict())


def test_a_changed_prompt_set_keeps_what_is_known():
    _, _, p = world()
    old = everything()
    run(old, np.random.default_rng(0), p, 7)
    new = everything(range(100, N), extra=2)
    with pytest.raises(CheckpointError, match="prompt_ids"):
        new.load_state_dict(old.state_dict())
    report = new.merge_state(old.state_dict())
    assert report == {"new": ["new 0", "new 1"], "gone": IDS[:100], "kept": IDS[100:]}
    assert new.predict(IDS[100:]).mean == pytest.approx(old.predict(IDS[100:]).mean, abs=1e-3)
    assert list(new.predict(["new 0", "new 1"]).cold) == [True, True]


def test_the_open_world_uses_own_history_alone():
    predictor = CalibratedPredictor()
    assert predictor.predict(["a", "b"]).mean == pytest.approx([0.4, 0.4], abs=0.02)
    predictor.observe(["a"], [8], [8])
    found = predictor.predict(["b", "a"])
    assert found.mean[1] > 0.8 > found.mean[0] and list(found.cold) == [True, False]


def test_features_need_ids():
    with pytest.raises(InvalidInputError, match="prompt_ids"):
        CalibratedPredictor(np.zeros((2, 2)))
    with pytest.raises(UnknownPromptError):
        CalibratedPredictor(prompt_ids=["a"]).predict(["b"])


def test_a_refused_state_leaves_the_predictor_as_it_was():
    _, x, _ = world()
    predictor, other = CalibratedPredictor(x, prompt_ids=IDS), CalibratedPredictor(x[:, :5], prompt_ids=IDS)
    other.observe(IDS[:5], np.full(5, 8), np.full(5, 8))
    before = copy.deepcopy(predictor.state_dict())
    for load in (predictor.load_state_dict, predictor.merge_state):
        with pytest.raises(CheckpointError, match="shape"):
            load(other.state_dict())
    assert same(before, predictor.state_dict())


def test_embeddings_that_are_not_finite_are_refused():
    _, x, _ = world()
    x[7, 2] = np.nan
    with pytest.raises(InvalidInputError, match="finite"):
        CalibratedPredictor(x, prompt_ids=IDS)


def test_memory_mapped_embeddings_stay_mapped(tmp_path):
    _, x, _ = world()
    np.save(tmp_path / "x.npy", x.astype(np.float16))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    a, b = CalibratedPredictor(mapped, prompt_ids=IDS), CalibratedPredictor(np.array(mapped), prompt_ids=IDS)
    for predictor in (a, b):
        predictor.observe(IDS[:20], np.arange(20) % 9, np.full(20, 8))
    assert same_prediction(a.predict(IDS), b.predict(IDS))


class TestConformance(PredictorConformance):
    def make(self):
        return CalibratedPredictor(
            np.random.default_rng(5).normal(size=(24, 6)),
            prompt_ids=self.prompt_ids,
            texts=[f"What is {i} + {i % 5}?" for i in range(24)],
            side_information={"difficulty": np.where(np.arange(24) % 3, np.arange(24.0), np.nan)},
        )


class TestWaiting:
    """A belief widens with the training that went on while its prompt waited."""

    @staticmethod
    def trained(wait: int) -> tuple[CalibratedPredictor, list[str]]:
        """The last prompt is dead at first and then waits for ``wait`` steps; the others move."""
        ids = [f"q{i}" for i in range(24)]
        predictor = CalibratedPredictor(prompt_ids=ids)
        draws = np.random.default_rng(0)
        logits = draws.normal(0, 0.5, 23)
        predictor.observe(ids, [*draws.binomial(8, special.expit(logits)), 0], np.full(24, 8))
        for _ in range(wait):
            logits += draws.normal(0, 0.5, 23)
            predictor.observe(ids[:23], draws.binomial(8, special.expit(logits)), np.full(23, 8))
        return predictor, ids

    def test_what_was_dead_long_ago_may_live_again(self) -> None:
        spreads = []
        for wait in (2, 40, 60):
            predictor, ids = self.trained(wait)
            spreads.append(float(predictor.predict(ids).bernoulli_variance[-1]))
        assert spreads[1] > 2 * spreads[0] and spreads[2] > spreads[1]

    def test_the_usual_wait_changes_nothing(self) -> None:
        predictor, ids = self.trained(6)
        assert predictor.metrics()["visit_interval"] == pytest.approx(1.0)
        every_other = CalibratedPredictor(prompt_ids=ids)
        draws = np.random.default_rng(0)
        for step in range(12):
            half = ids[step % 2 :: 2]
            every_other.observe(half, draws.binomial(8, 0.5, 12), np.full(12, 8))
        assert every_other.metrics()["visit_interval"] == pytest.approx(2.0)
        np.testing.assert_array_equal(
            every_other._drift.visits_worth(np.array([1.0, 2.0, 5.0, 1e6])), [1, 1, 2, 500_000]
        )

    def test_resumed_bit_for_bit(self) -> None:
        predictor, ids = self.trained(9)
        again = CalibratedPredictor(prompt_ids=ids)
        again.load_state_dict(predictor.state_dict())
        np.testing.assert_array_equal(predictor.predict(ids).mean, again.predict(ids).mean)
