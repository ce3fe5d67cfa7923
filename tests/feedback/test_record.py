"""What is said aloud of the steps taken in."""

from __future__ import annotations

import logging

import pytest

import viprl
from viprl.feedback.record import SILENT_STEPS


def run(steps: int, successful: int | None, allocator: viprl.RolloutAllocator | None = None) -> viprl.RolloutAllocator:
    ids = list("abcd")
    allocator = allocator or viprl.build_allocator(viprl.PromptSet(ids), viprl.AllocationSettings(success_reward="1"))
    for step in range(steps):
        plan = allocator.allocate(ids, 16)
        allocator.observe(plan, [float(step == successful)] + [0.25] * 15)
    return allocator


def test_a_success_that_never_comes_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "viprl"):
        run(3 * SILENT_STEPS, None)
    said = [record.getMessage() for record in caplog.records if "no success in" in record.getMessage()]
    assert len(said) == 1 and f"no success in {SILENT_STEPS} steps: none of the {16 * SILENT_STEPS} outcomes" in said[0]
    assert "0 to 0.25" in said[0] or "0.25 to 0.25" in said[0]


@pytest.mark.parametrize("successful", [0, SILENT_STEPS - 2])
def test_one_success_is_enough(successful: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "viprl"):
        first = run(SILENT_STEPS - 1, successful)
        second = viprl.build_allocator(viprl.PromptSet(list("abcd")), viprl.AllocationSettings(success_reward="1"))
        second.load_state_dict(first.state_dict())
        run(2 * SILENT_STEPS, None, second)
    assert "no success in" not in caplog.text, "a resumed run remembers that there was one"
