"""VisitLog against plain Python dictionaries; hindsight against a direct sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viprl.errors import InvalidInputError
from viprl.replay.log import VisitLog, hindsight

ROWS = st.lists(
    st.tuples(st.integers(-3, 6), st.sampled_from("abcde"), st.integers(1, 6), st.floats(0, 1)),
    min_size=1,
    max_size=40,
).map(lambda rows: [(step, name, n, float(round(share * n))) for step, name, n, share in rows])


def build(rows, **options):
    steps, names, n, k = zip(*rows, strict=True)
    return VisitLog.build(steps, np.array(names, dtype=object), k, n, **options)


@given(ROWS)
def test_build_sorts_groups_and_drops_repeats(rows):
    log = build(rows)
    expected: dict[int, dict[str, tuple[float, int]]] = {}
    last_run: dict[int, int] = {}
    for place, (step, name, n, k) in enumerate(rows):
        begins = place == 0 or rows[place - 1][0] != step
        last_run[step] = last_run.get(step, 0) + begins
        run, *_ = expected.setdefault(step, {}).get(name, (0,))
        if run != last_run[step]:  # a step that is run again counts as it was the last time
            expected[step][name] = (last_run[step], k, n)
    expected = {step: {name: kept[1:] for name, kept in found.items()} for step, found in expected.items()}
    found = {
        int(number): {
            log.prompt_ids[log.rows[v]]: (float(log.successes[v]), int(log.rollouts[v]))
            for v in range(part.start, part.stop)
        }
        for number, part in zip(log.step_numbers, log.steps(), strict=True)
    }
    assert found == expected
    assert list(log.step_numbers) == sorted(expected)
    dropped = log.repeats + log.replaced
    assert dropped == len(rows) - sum(len(v) for v in expected.values()) and len(log) == len(rows) - dropped


def test_after_a_crash_the_second_run_of_a_step_counts():
    rows = [(1, "a", 4, 0.0), (2, "a", 4, 1.0), (3, "b", 4, 2.0), (2, "a", 4, 3.0), (2, "a", 4, 4.0), (3, "c", 4, 0.0)]
    log = build(rows)
    assert (log.repeats, log.replaced) == (1, 1)
    step_two = log.successes[log.offsets[1] : log.offsets[2]]
    assert step_two.tolist() == [3.0]
    assert [log.prompt_ids[r] for r in log.rows[log.offsets[2] :]] == ["b", "c"]


@given(ROWS)
def test_subset_is_the_log_of_the_kept_rows(rows):
    log = build(rows)
    keep = log.rollouts >= 2
    if keep.any():
        part = log.subset(keep)
        assert part.rollouts.min() >= 2 and len(part) == keep.sum()
        assert sum(len(range(*s.indices(len(part)))) for s in part.steps()) == len(part)
        assert set(part.step_numbers) <= set(log.step_numbers)
    else:
        with pytest.raises(InvalidInputError, match="none is left"):
            log.subset(keep)


@given(ROWS)
def test_hindsight_is_the_faded_sum_over_the_other_visits(rows):
    log = build(rows)
    step_of = np.repeat(np.arange(log.n_steps), np.diff(log.offsets))
    found = hindsight(log, prior=(0.3, 0.45), keep=0.8)
    for v in range(len(log)):
        mine = [u for u in np.argsort(step_of, kind="stable") if log.rows[u] == log.rows[v]]
        place = mine.index(v)
        a, b = 0.3, 0.45
        for other, u in enumerate(mine):
            if other != place:
                fade = 0.8 ** abs(other - place)
                a += fade * log.successes[u]
                b += fade * (log.rollouts[u] - log.successes[u])
        # the nearest visit has faded by the step to it already: keep^1
        assert found[v] == pytest.approx([a, b])


def test_order_of_prompts_may_be_given():
    rows = [(1, "b", 4, 1.0), (1, "a", 4, 2.0)]
    log = build(rows, all_prompts=["a", "b", "c"])
    assert log.prompt_ids == ("a", "b", "c") and log.rows.tolist() == [1, 0]
    assert log.pooled()[1].tolist() == [4, 4, 0]
    with pytest.raises(InvalidInputError, match="1 are missing"):
        build(rows, all_prompts=["a", "c"])
    with pytest.raises(InvalidInputError, match="unique"):
        build(rows, all_prompts=["a", "b", "b"])


@pytest.mark.parametrize(("n", "k"), [([0], [0.0]), ([4], [5.0]), ([4], [-1.0]), ([4], [float("nan")])])
def test_impossible_counts(n, k):
    with pytest.raises(InvalidInputError, match="must hold"):
        VisitLog.build([1], np.array(["a"], dtype=object), k, n)


def test_empty_and_ragged_columns():
    with pytest.raises(InvalidInputError, match="at least one visit"):
        VisitLog.build([], np.array([], dtype=object), [], [])
    with pytest.raises(InvalidInputError, match="same length"):
        VisitLog.build([1, 2], np.array(["a"], dtype=object), [1.0], [2])
