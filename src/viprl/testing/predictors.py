"""What every predictor promises."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from viprl.errors import InvalidInputError
from viprl.prediction.base import Prediction, Predictor
from viprl.testing.checks import expect_error, is_plain, same, same_prediction


class PredictorConformance:
    """Subclass and give ``make()``: a fresh predictor that knows ``prompt_ids``.

    Attributes:
        prompt_ids: ids that the predictor is asked about (24 of them); build it for these.
        learns_per_prompt: set False where one prompt's evidence need not move its own prediction.
    """

    prompt_ids: tuple[str, ...] = tuple(f"prompt-{i:02d}" for i in range(24))
    learns_per_prompt: bool = True

    def make(self) -> Any:
        """A fresh predictor that knows ``prompt_ids``."""
        raise NotImplementedError

    def observe(self, predictor: Any, ids: Any, successes: Any, rollouts: Any) -> None:
        """Hand over success counts; for real rewards the means and variances that counts of ones and zeros have."""
        if predictor.reward_kind == "binary":
            predictor.observe(ids, successes, rollouts)
            return
        k, n = np.asarray(successes, dtype=np.float64), np.asarray(rollouts, dtype=np.float64)
        mean = np.divide(k, n, out=np.zeros_like(k), where=n > 0)
        variance = np.divide(k * (n - k), n * (n - 1), out=np.zeros_like(k), where=n > 1)
        predictor.observe_rewards(ids, mean, variance, n)

    def _steps(self, predictor: Any, count: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(count):
            ids = [self.prompt_ids[i] for i in rng.choice(len(self.prompt_ids), 8, replace=False)]
            rollouts = rng.integers(2, 9, 8)
            self.observe(predictor, ids, rng.binomial(rollouts, 0.4), rollouts)

    def test_is_a_predictor(self) -> None:
        predictor = self.make()
        assert predictor.reward_kind in ("binary", "real")
        if predictor.reward_kind == "binary":
            assert isinstance(predictor, Predictor), f"{type(predictor).__name__} lacks a method of Predictor"
        else:
            assert hasattr(predictor, "observe_rewards")

    def test_predictions_are_probabilities(self) -> None:
        predictor = self.make()
        for steps in (0, 1, 5):
            self._steps(predictor, steps, seed=steps)
            prediction = predictor.predict(self.prompt_ids)
            assert isinstance(prediction, Prediction)
            assert len(prediction) == len(self.prompt_ids)
            for name in ("mean", "bernoulli_variance", "reward_variance"):
                values = getattr(prediction, name)
                assert values.shape == (len(self.prompt_ids),) and np.isfinite(values).all(), name
                assert (values >= 0).all(), name
            if predictor.reward_kind == "binary":
                assert (prediction.mean <= 1).all()
                plug_in = prediction.mean * (1 - prediction.mean)
                assert (prediction.bernoulli_variance <= plug_in + 1e-9).all(), "E[p(1-p)] <= mean (1 - mean)"

    def test_expectations_agree_with_the_moments(self) -> None:
        predictor = self.make()
        if predictor.reward_kind != "binary":
            return
        self._steps(predictor, 3)
        prediction = predictor.predict(self.prompt_ids)
        assert np.allclose(prediction.expect(lambda p: np.ones_like(p)), 1.0, atol=1e-9)
        assert np.allclose(prediction.expect(lambda p: p), prediction.mean, atol=0.01)
        assert np.allclose(prediction.expect(lambda p: p * (1 - p)), prediction.bernoulli_variance, atol=0.01)

    def test_predict_is_pure(self) -> None:
        predictor = self.make()
        self._steps(predictor, 2)
        before = copy.deepcopy(predictor.state_dict())
        first = predictor.predict(self.prompt_ids)
        predictor.predict(self.prompt_ids[::-1][:5])
        assert same_prediction(first, predictor.predict(self.prompt_ids)), "the same question, the same answer"
        assert same(before, predictor.state_dict()), "predict must not change the state"

    def test_a_prediction_belongs_to_its_id(self) -> None:
        predictor = self.make()
        self._steps(predictor, 3)
        whole = predictor.predict(self.prompt_ids)
        order = np.random.default_rng(1).permutation(len(self.prompt_ids))
        shuffled = predictor.predict([self.prompt_ids[i] for i in order])
        assert np.allclose(whole.mean[order], shuffled.mean, rtol=1e-9, atol=1e-12)
        assert np.allclose(whole.reward_variance[order], shuffled.reward_variance, rtol=1e-9, atol=1e-12)
        twice = predictor.predict([self.prompt_ids[0], self.prompt_ids[0]])
        assert twice.mean[0] == twice.mean[1], "a prompt may occur twice in a batch"

    def test_evidence_moves_the_prediction(self) -> None:
        if not self.learns_per_prompt:
            return
        good, bad = self.make(), self.make()
        prompt = [self.prompt_ids[0]]
        for _ in range(3):
            self.observe(good, prompt, [8], [8])
            self.observe(bad, prompt, [0], [8])
        if good.reward_kind == "binary":
            assert good.predict(prompt).mean[0] > bad.predict(prompt).mean[0]
        mixed = self.make()
        for _ in range(3):
            self.observe(mixed, prompt, [4], [8])
        assert mixed.predict(prompt).reward_variance[0] > good.predict(prompt).reward_variance[0]

    def test_cold_until_observed(self) -> None:
        predictor = self.make()
        assert predictor.predict(self.prompt_ids).cold.all(), "a fresh predictor has seen no prompt"
        self.observe(predictor, list(self.prompt_ids[:2]), [1, 1], [4, 4])
        cold = predictor.predict(self.prompt_ids).cold
        assert not cold[:2].any() and cold[2:].all(), "only observed prompts are no longer cold"

    def test_zero_rollouts_are_no_news(self) -> None:
        predictor = self.make()
        self._steps(predictor, 2)
        before = predictor.predict(self.prompt_ids)
        self.observe(predictor, [self.prompt_ids[0]], [0], [0])
        assert same_prediction(before, predictor.predict(self.prompt_ids))

    def test_repeated_ids_add_up(self) -> None:
        apart, together = self.make(), self.make()
        if apart.reward_kind != "binary":
            return
        a, b = self.prompt_ids[0], self.prompt_ids[1]
        self.observe(apart, [a, b, a], [1, 2, 3], [4, 4, 4])
        self.observe(together, [a, b], [4, 2], [8, 4])
        x, y = apart.predict(self.prompt_ids), together.predict(self.prompt_ids)
        assert np.allclose(x.mean, y.mean, rtol=1e-9) and np.allclose(x.bernoulli_variance, y.bernoulli_variance)

    def test_impossible_counts_are_errors(self) -> None:
        prompt = [self.prompt_ids[0]]
        impossible = {
            "more successes than rollouts": ([5], [4]),
            "negative successes": ([-1], [4]),
            "negative rollouts": ([0], [-1]),
            "NaN": ([np.nan], [4]),
            "infinity": ([np.inf], [4]),
        }
        for what, (successes, rollouts) in impossible.items():
            predictor = self.make()
            if predictor.reward_kind != "binary":
                continue
            before = predictor.predict(self.prompt_ids)
            with expect_error(InvalidInputError, what):
                predictor.observe(prompt, successes, rollouts)
            assert same_prediction(before, predictor.predict(self.prompt_ids)), f"{what} must leave the state alone"

    def test_lengths_must_agree(self) -> None:
        predictor = self.make()
        if predictor.reward_kind != "binary":
            return
        with expect_error(InvalidInputError, "two ids with one count"):
            predictor.observe(list(self.prompt_ids[:2]), [1], [4])

    def test_state_round_trip_continues_bit_for_bit(self) -> None:
        original = self.make()
        self._steps(original, 4)
        saved = copy.deepcopy(original.state_dict())
        self._steps(original, 3, seed=7)
        expected = original.predict(self.prompt_ids)
        restored = self.make()
        restored.load_state_dict(saved)
        assert same(saved, restored.state_dict()), "load_state_dict(s) must make state_dict() return s"
        self._steps(restored, 3, seed=7)
        assert same_prediction(expected, restored.predict(self.prompt_ids))

    def test_saved_state_is_a_copy_and_plain(self) -> None:
        predictor = self.make()
        self._steps(predictor, 2)
        state = predictor.state_dict()
        assert is_plain(state), "the state must consist of arrays, numbers, strings, lists and dicts"
        frozen = copy.deepcopy(state)
        self._steps(predictor, 2, seed=3)
        assert same(frozen, state), "learning on must not change a state that was saved before"

    def test_metrics_are_numbers(self) -> None:
        predictor = self.make()
        self._steps(predictor, 2)
        metrics = predictor.metrics()
        assert all(isinstance(key, str) and np.isscalar(value) for key, value in metrics.items())
