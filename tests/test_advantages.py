"""Ragged groups: hand-computed advantages, and the cases that broke other trainers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viprl.advantages import (
    ESTIMATORS,
    advantages_by_row,
    equal_weights,
    flat_rewards,
    group_advantages,
    rows_of_sizes,
)
from viprl.errors import InvalidInputError
from viprl.feedback import group_moments


def by_hand(groups: list[list[float | None]], estimator: str, epsilon: float) -> list[float]:
    """The definitions in plain Python, one rollout at a time."""
    out = []
    for group in groups:
        present = [r for r in group if r is not None]
        n = len(present)
        for r in group:
            if r is None or n < 2 or max(present) == min(present):
                out.append(0.0)
            elif estimator == "rloo":
                out.append(r - (sum(present) - r) / (n - 1))
            else:
                mean = sum(present) / n
                std = (sum((x - mean) ** 2 for x in present) / (n - 1)) ** 0.5
                out.append((r - mean) / (std + epsilon) if estimator == "grpo" else r - mean)
    return out


ANY_REWARD = tuple(name for name in ESTIMATORS if name != "maxrl")  # maxrl takes rewards in [0, 1]
rewards_strategy = st.lists(
    st.lists(st.one_of(st.none(), st.sampled_from([0.0, 1.0, -1.0, 0.5])), min_size=1, max_size=9),
    min_size=1,
    max_size=8,
)


@settings(max_examples=150, deadline=None)
@given(rewards_strategy, st.sampled_from(ANY_REWARD))
def test_matches_the_definitions(groups, estimator):
    sizes = [len(g) for g in groups]
    got = group_advantages(groups, sizes, estimator, epsilon=1e-4)
    np.testing.assert_allclose(got, by_hand(groups, estimator, 1e-4), atol=1e-9)


@settings(max_examples=100, deadline=None)
@given(rewards_strategy, st.sampled_from(ANY_REWARD), st.randoms(use_true_random=False))
def test_order_of_rows_does_not_matter(groups, estimator, random):
    sizes = [len(g) for g in groups]
    flat, rows = flat_rewards(groups, sizes), rows_of_sizes(sizes)
    order = list(range(len(flat)))
    random.shuffle(order)
    straight = advantages_by_row(flat, rows, len(sizes), estimator, prompt_weighting="equal")
    shuffled = advantages_by_row(flat[order], rows[order], len(sizes), estimator, prompt_weighting="equal")
    np.testing.assert_allclose(shuffled, straight[order], atol=1e-12)


@settings(max_examples=100, deadline=None)
@given(rewards_strategy, st.sampled_from(ANY_REWARD))
def test_equal_weights_turn_the_mean_over_rollouts_into_a_mean_over_prompts(groups, estimator):
    """sum over present rows of w A g / C' == mean over prompts with a reward of the group's mean of A g."""
    sizes = [len(g) for g in groups]
    flat, rows = flat_rewards(groups, sizes), rows_of_sizes(sizes)
    present = ~np.isnan(flat)
    if not present.any():
        return
    g = np.random.default_rng(0).normal(size=len(flat))
    plain = advantages_by_row(flat, rows, len(sizes), estimator)
    weighted = advantages_by_row(flat, rows, len(sizes), estimator, prompt_weighting="equal")
    means = [(plain * g)[(rows == q) & present].mean() for q in range(len(sizes)) if ((rows == q) & present).any()]
    np.testing.assert_allclose((weighted * g)[present].mean(), np.mean(means), atol=1e-12)


@pytest.mark.parametrize("estimator", ANY_REWARD)
class TestCasesFromTheField:
    def test_uneven_groups_with_one_constant_reward(self, estimator):
        got = group_advantages([5.0] * 11, [4, 3, 4], estimator)
        assert got.tolist() == [0.0] * 11

    @pytest.mark.parametrize("reward", [0.35, 0.1, 1e-8, 1e8, -3.3, 0.0])
    def test_constant_rewards_in_float32_leave_no_residue(self, estimator, reward):
        got = group_advantages(np.full(8, reward, np.float32), [8], estimator, epsilon=1e-6)
        assert got.tolist() == [0.0] * 8

    def test_rewards_apart_by_float32_rounding_are_constant(self, estimator):
        one = np.float32(0.35)
        rewards = [one, np.nextafter(one, np.float32(1)), np.nextafter(one, np.float32(0)), one]
        assert group_advantages(rewards, [4], estimator, epsilon=1e-6).tolist() == [0.0] * 4

    def test_small_real_differences_are_kept(self, estimator):
        assert np.abs(group_advantages([0.35, 0.3501], [2], estimator)).min() > 0

    def test_group_of_one_gets_zero(self, estimator):
        assert group_advantages([1.0, 0.0, 1.0], [1, 2], estimator)[0] == 0.0
        assert group_advantages([[1.0, None], [0.0, 1.0]], [2, 2], estimator)[:2].tolist() == [0.0, 0.0]

    def test_one_success_stays_bounded(self, estimator):
        assert np.abs(group_advantages([1, 0, 0, 0], [4], estimator, epsilon=1e-6)).max() < 2

    def test_missing_is_neither_nan_nor_zero_reward(self, estimator):
        got = group_advantages([1.0, None, 0.0, float("nan")], [4], estimator)
        alone = group_advantages([1.0, 0.0], [2], estimator)
        assert got.tolist() == [alone[0], 0.0, alone[1], 0.0]

    def test_all_missing_and_all_dead(self, estimator):
        got = group_advantages([[None] * 3, [1.0] * 4, [0.0] * 2], [3, 4, 2], estimator, prompt_weighting="equal")
        assert got.tolist() == [0.0] * 9

    def test_nothing_at_all(self, estimator):
        assert group_advantages([None, None], [2], estimator, prompt_weighting="equal").tolist() == [0.0, 0.0]
        assert len(group_advantages([], [], estimator)) == 0


def test_offset_costs_no_digits():
    small, large = [0.0, 1.0, 0.0, 2.0], [1e9, 1e9 + 1, 1e9, 1e9 + 2]
    moments = group_moments(small + large, rows_of_sizes([4, 4]), 2)
    assert moments.variance[0] == pytest.approx(11 / 12)
    # 1e9 apart by 1 is below float32's rounding there, so it counts as constant; 1e5 does not
    assert moments.variance[1] == 0
    shifted = group_moments([1e5 + x for x in small], [0] * 4, 1)
    assert shifted.variance[0] == pytest.approx(11 / 12, rel=1e-9)


def test_moments():
    moments = group_moments([1, np.nan, 0, np.nan, 3], [0, 0, 0, 1, 2], 4)
    assert moments.count.tolist() == [2, 0, 1, 0]
    np.testing.assert_allclose(moments.mean, [0.5, np.nan, 3, np.nan])
    np.testing.assert_allclose(moments.variance, [0.5, np.nan, np.nan, np.nan])
    assert moments.constant.tolist() == [False, False, True, False]


def test_equal_weights():
    np.testing.assert_allclose(equal_weights([4, 0, 2]), [6 / (2 * 4), 0, 6 / (2 * 2)])
    assert equal_weights([0, 0]).tolist() == [0, 0]


def test_short_groups_are_missing_rollouts():
    assert np.isnan(flat_rewards([[1.0], [0.0, 1.0]], [3, 2])).tolist() == [False, True, True, False, False]


def test_read_as_the_allocator_reads_them():
    """A group may be missing as a whole, arrays may be two-dimensional, and a tensor's elements are numbers."""
    assert np.isnan(flat_rewards([[1.0], None], [1, 2])).tolist() == [False, True, True]
    assert flat_rewards(np.array([[0, 1], [1, 1]]), [2, 2]).tolist() == [0, 1, 1, 1]
    torch = pytest.importorskip("torch")
    assert flat_rewards(torch.tensor([0.0, 1.0, 0.5]), [1, 2]).tolist() == [0, 1, 0.5]
    assert flat_rewards(list(torch.tensor([0.0, 1.0, 0.5])), [1, 2]).tolist() == [0, 1, 0.5]
    assert flat_rewards([torch.tensor([0.0]), torch.tensor([1.0, 0.5])], [1, 2]).tolist() == [0, 1, 0.5]


class PlanLike:
    group_sizes = np.array([2, 3])


def test_takes_a_plan():
    assert group_advantages([1, 0, 1, 1, 1], PlanLike(), "rloo").tolist() == [1.0, -1.0, 0, 0, 0]


@pytest.mark.parametrize(
    ("rewards", "sizes", "words"),
    [
        ([1.0, 0.0], [3], "sum of group sizes"),
        ([[1.0, 0.0]], [2, 1], "one sequence per group"),
        ([[1.0, 0.0, 1.0]], [2], "at most its planned"),
        ([float("inf"), 0.0], [2], "infinite"),
        ([1.0], [-1], "non-negative"),
        (["1.0", "0.0"], [2], "must be numbers"),
    ],
)
def test_refusals(rewards, sizes, words):
    with pytest.raises(InvalidInputError, match=words):
        group_advantages(rewards, sizes, "rloo")


def test_unknown_names_are_refused():
    with pytest.raises(InvalidInputError, match="estimator"):
        group_advantages([1.0], [1], "ppo")
    with pytest.raises(InvalidInputError, match="prompt_weighting"):
        group_advantages([1.0], [1], "rloo", prompt_weighting="both")
    with pytest.raises(InvalidInputError, match="rows"):
        group_moments([1.0], [3], 2)
