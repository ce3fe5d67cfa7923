"""Ragged rewards: what counts as a reward, what as missing, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viprl.errors import InvalidInputError
from viprl.feedback.rewards import detect_values, read_rewards, to_successes


def test_ragged_and_flat_agree() -> None:
    ragged = read_rewards([[1, 0, 1], [0, None], [1.0]], np.array([3, 2, 1]))
    flat = read_rewards(np.array([1, 0, 1, 0, np.nan, 1]), np.array([3, 2, 1]))
    np.testing.assert_array_equal(ragged.flat, flat.flat)
    np.testing.assert_array_equal(ragged.counts, [3, 1, 1])
    assert ragged.missing == 1


def test_fewer_than_planned_is_missing() -> None:
    read = read_rewards([[1, 0], None, []], np.array([3, 2, 2]))
    np.testing.assert_array_equal(read.counts, [2, 0, 0])
    assert read.missing == 5


def test_all_none_is_read_by_its_length() -> None:
    assert read_rewards([None, None], np.array([3, 2])).missing == 5
    assert read_rewards([None] * 5, np.array([3, 2])).missing == 5


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ([[1, 0, 1, 1], [1]], "at most its planned rollouts"),
        ([[1, 0]], "one group per planned prompt"),
        ([1, 0, 1], "one entry per planned rollout"),
        ([[1, float("inf"), 0], [1]], "finite or missing"),
        ([["yes", "no"], [1]], "numbers, None or NaN"),
    ],
)
def test_bad_rewards_are_refused(rewards: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read_rewards(rewards, np.array([3, 1]))


@given(
    st.lists(st.lists(st.floats(-5, 5, allow_nan=False), min_size=1, max_size=9), min_size=1, max_size=12),
)
def test_moments_are_numpys(groups: list[list[float]]) -> None:
    read = read_rewards(groups, np.array([len(g) for g in groups]))
    for q, group in enumerate(groups):
        assert read.means[q] == pytest.approx(np.mean(group), abs=1e-12)
        if len(group) > 1:
            assert read.variances[q] == pytest.approx(np.var(group, ddof=1), abs=1e-12)
        else:
            assert np.isnan(read.variances[q])


@pytest.mark.parametrize("value", [0.35, 5.0, 0.1, -1.0])
def test_equal_rewards_have_exactly_no_variance(value: float) -> None:
    read = read_rewards([np.full(8, value, np.float32)], np.array([8]))
    assert read.variances[0] == 0.0


def test_binary_pairs_are_told_apart() -> None:
    sizes = np.array([2, 2])
    assert detect_values(read_rewards([[0, 1], [1, 1]], sizes)) == (0.0, 1.0)
    assert detect_values(read_rewards([[-1, 1], [1, 1]], sizes)) == (-1.0, 1.0)
    assert detect_values(read_rewards([[-1, -1], [None, -1]], sizes)) == (-1.0, 1.0)
    assert detect_values(read_rewards([[1, 1], [1, 1]], sizes)) is None
    with pytest.raises(InvalidInputError, match="RewardVariancePredictor"):
        detect_values(read_rewards([[0.3, 1], [1, 1]], sizes))
    with pytest.raises(InvalidInputError):
        detect_values(read_rewards([[-1, 0], [1, 1]], sizes))


def test_successes_map_the_declared_values() -> None:
    read = read_rewards([[-1, 1, 1], [None, -1]], np.array([3, 2]))
    np.testing.assert_array_equal(to_successes(read, (-1.0, 1.0)).flat, [0, 1, 1, np.nan, 0])
    with pytest.raises(InvalidInputError, match="must be 0 or 1"):
        to_successes(read, (0.0, 1.0))


def test_masks_and_tensors_are_read() -> None:
    masked = np.ma.masked_array([1.0, 0.0, 1.0, 0.0], mask=[False, True, False, False])
    np.testing.assert_array_equal(read_rewards(masked, np.array([2, 2])).flat, [1, np.nan, 1, 0])
    ragged = [np.ma.masked_array([1, 0], mask=[True, False]), [1.0, np.ma.masked]]
    np.testing.assert_array_equal(read_rewards(ragged, np.array([2, 2])).flat, [np.nan, 0, 1, np.nan])
    torch = pytest.importorskip("torch")
    half = torch.tensor([1.0, 0.0, 0.5, 0.0], dtype=torch.bfloat16)
    graded = torch.tensor([1.0, 0.0, 0.5, 0.0], requires_grad=True)
    for tensor in (half, graded):
        for rewards in (tensor, list(tensor), [tensor[:2], tensor[2:]]):
            np.testing.assert_array_equal(read_rewards(rewards, np.array([2, 2])).flat, [1, 0, 0.5, 0])


def test_rewards_beyond_arithmetic_are_refused_before_anything_is_learnt():
    from viprl import RLOO, DiscountedBeta, RewardVariancePredictor, RolloutAllocator

    for predictor in (RewardVariancePredictor(prompt_ids=["a", "b"]), DiscountedBeta(["a", "b"])):
        allocator = RolloutAllocator(predictor, RLOO())
        plan = allocator.allocate(["a", "b"], 8)
        for huge in (1e71, -1e160, 1e308):
            with pytest.raises(InvalidInputError, match="must lie within"):
                allocator.observe(plan, [0.0] * 7 + [huge])
        assert allocator.step == 0
        allocator.observe(plan, [0.0, 1.0] * 4)


def test_two_values_are_offered_as_reward_values():
    with pytest.raises(InvalidInputError, match=r"successes must.*reward_values=\[0, 2\]"):
        detect_values(read_rewards([[0.0, 2.0]], np.array([2])), "successes")
