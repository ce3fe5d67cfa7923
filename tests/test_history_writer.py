"""History part files: schema, atomic flush, cutting back."""

from __future__ import annotations

import json

import pytest

from viprl.errors import InvalidInputError
from viprl.history import HISTORY_COLUMNS, HistoryWriter, parts, read_part


def step_rows(step, ids=("a", "b")):
    return [
        {
            "step": step,
            "prompt_id": prompt_id,
            "visit": step,
            "successes": 1.0,
            "n_rollouts": 3,
            "reward_mean": 1 / 3,
            "reward_var": float("nan") if prompt_id == "b" else 0.25,
            "predicted_mean": 0.5,
            "predicted_bernoulli_variance": 0.2,
            "group_size": 4,
            "tokens": None,
            "seconds": None,
        }
        for prompt_id in ids
    ]


@pytest.fixture(params=["jsonl", "parquet"])
def make(request, tmp_path):
    if request.param == "parquet":
        pytest.importorskip("pyarrow")
    return lambda **options: HistoryWriter(tmp_path / "history", format=request.param, **options)


def all_rows(writer):
    return [row for path, _, _ in parts(writer.folder) for row in read_part(path)]


def test_round_trip(make):
    writer = make()
    assert writer.flush() is None and not writer.folder.exists()
    writer.add(step_rows(0))
    writer.add(step_rows(1))
    path = writer.flush()
    assert path.name.startswith("part-00000000-00000001.")
    rows = all_rows(writer)
    assert [(r["step"], r["prompt_id"]) for r in rows] == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]
    assert set(rows[0]) == set(HISTORY_COLUMNS)
    assert rows[0]["reward_var"] == 0.25 and rows[1]["reward_var"] is None and rows[0]["tokens"] is None
    assert [p.name for p in writer.folder.iterdir()] == [path.name]  # no temporary file stays


def test_flushes_by_itself(make):
    writer = make(flush_every=3)
    for step in range(7):
        writer.add(step_rows(step))
    assert [(first, last) for _, first, last in parts(writer.folder)] == [(0, 2), (3, 5)]


def test_cut_back(make):
    writer = make(flush_every=4)
    for step in range(10):
        writer.add(step_rows(step))
    assert writer.cut_back(6) == 8
    assert [r["step"] for r in all_rows(writer)] == [s for s in range(6) for _ in "ab"]
    writer.add(step_rows(6))
    writer.flush()
    assert [r["step"] for r in all_rows(writer)] == [s for s in range(7) for _ in "ab"]
    assert writer.cut_back(6) == 2 and writer.cut_back(6) == 0
    writer.cut_back(0)
    assert parts(writer.folder) == []


def test_cut_back_survives_a_crash_in_the_middle(make):
    """Killed after the shortened part was written and before the old one was removed: cutting again mends it."""
    writer = make()
    for step in range(4):
        writer.add(step_rows(step))
    old = writer.flush()
    content = old.read_bytes()
    writer.cut_back(2)
    old.write_bytes(content)
    make().cut_back(2)
    assert [r["step"] for r in all_rows(writer)] == [0, 0, 1, 1]


def test_refusals(make):
    writer = make()
    row = step_rows(3)[0]
    with pytest.raises(InvalidInputError, match="must have the columns"):
        writer.add([{k: v for k, v in row.items() if k != "visit"}])
    with pytest.raises(InvalidInputError, match="must have the columns"):
        writer.add([{**row, "colour": 1}])
    with pytest.raises(InvalidInputError, match="must not be null"):
        writer.add([{**row, "n_rollouts": None}])
    writer.add([row])
    with pytest.raises(InvalidInputError, match="backwards"):
        writer.add(step_rows(2))
    with pytest.raises(InvalidInputError, match="flush_every"):
        make(flush_every=0)
    with pytest.raises(InvalidInputError, match="format"):
        HistoryWriter("x", format="csv")


def test_jsonl_has_no_nan(tmp_path):
    writer = HistoryWriter(tmp_path, format="jsonl")
    writer.add(step_rows(0))
    for line in writer.flush().read_text().splitlines():
        json.loads(line, parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))


def test_parquet_types(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    writer = HistoryWriter(tmp_path, format="parquet")
    writer.add(step_rows(0))
    schema = pq.read_schema(writer.flush())
    assert tuple(schema.names) == HISTORY_COLUMNS
    assert str(schema.field("tokens").type) == "int64" and str(schema.field("reward_var").type) == "double"
