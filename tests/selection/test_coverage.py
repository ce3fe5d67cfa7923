"""Who waits how long, effective prompts, and the verdict that training has narrowed."""

from __future__ import annotations

import numpy as np
import pytest

from viprl.errors import InvalidInputError
from viprl.selection import Coverage

IDS = [f"p{i}" for i in range(64)]


def rolling(coverage: Coverage, steps: int, kept: int, among: int) -> Coverage:
    """Steps that keep ``kept`` of the first ``among`` prompts, in turn, with all 64 as candidates."""
    for step in range(steps):
        chosen = {(step * kept + i) % among for i in range(kept)}
        coverage.learn(IDS, [i in chosen for i in range(64)])
    return coverage


def test_a_pass_is_as_many_kept_prompts_as_there_are_prompts() -> None:
    coverage = rolling(Coverage(), 8, 8, 64)
    assert coverage.clock == pytest.approx(1.0)
    assert coverage.waited(["p0", "p63", "new"]) == pytest.approx([7 / 8, 0.0, 0.0])


def test_who_is_never_kept_waits_from_the_first_offer_on() -> None:
    coverage = rolling(Coverage(), 16, 8, 8)
    assert coverage.waited(["p0", "p60"]) == pytest.approx([0.0, 2.0])
    assert coverage.visited_share() == pytest.approx(8 / 64)


def test_effective_prompts() -> None:
    assert Coverage().effective() == 0.0
    assert rolling(Coverage(), 40, 8, 64).effective() > 40
    assert rolling(Coverage(), 40, 4, 4).effective() == pytest.approx(4.0)


def test_narrow_after_the_first_pass_only() -> None:
    assert not rolling(Coverage(), 15, 4, 4).narrow
    assert rolling(Coverage(), 32, 4, 4).narrow
    assert not rolling(Coverage(), 32, 4, 32).narrow
    assert not rolling(Coverage(least_steps=0), 32, 4, 4).narrow


def test_state_continues_bit_for_bit() -> None:
    first = rolling(Coverage(), 11, 5, 30)
    second = Coverage()
    second.load_state_dict(first.state_dict())
    for coverage in (first, second):
        rolling(coverage, 7, 3, 64)
        coverage.learn([f"later{i}" for i in range(100)], [True] * 100)
    assert np.array_equal(first.waited(IDS), second.waited(IDS))
    assert first.effective() == second.effective() and first.clock == second.clock


def test_flags_must_fit() -> None:
    with pytest.raises(InvalidInputError, match="one flag"):
        Coverage().learn(["a"], [True, False])
