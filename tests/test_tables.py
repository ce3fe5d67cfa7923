"""Tables are read alike whatever their kind: ids as text, one clear error for what is damaged."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from viprl._tables import column_names, id_text, number, read_rows, table_kind
from viprl.errors import InvalidInputError

IDS = ["0001", "1e0", "NA", "007", "None", "nan", " x ", str(2**53 + 1)]


def rows(path: Path, **options: Any) -> list[dict[str, Any]]:
    return [row for _, row in read_rows(path, **options)]


def written(path: Path, records: list[dict[str, Any]]) -> Path:
    kind = table_kind(path)
    if kind == "parquet":
        arrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(arrow.Table.from_pylist(records), path)
        return path
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8", newline="") as file:
        if kind == "csv":
            table = csv.DictWriter(file, list(records[0]), delimiter="\t" if ".tsv" in path.name else ",")
            table.writeheader()
            table.writerows(records)
        elif path.name == "t.json":
            json.dump(records, file)
        else:
            file.writelines(json.dumps(record) + "\n" for record in records)
    return path


NAMES = ["t.csv", "t.tsv", "t.jsonl", "t.json", "t.ndjson.gz", "t.csv.gz", "t.parquet", "T.CSV", "pipe"]


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_gives_the_same_ids(tmp_path, name):
    path = written(tmp_path / name, [{"id": i, "text": "é"} for i in [*IDS, None]])
    assert [id_text(row["id"]) for row in rows(path)] == [*IDS, None]
    assert {row["text"] for row in rows(path)} == {"é"}
    assert column_names(path) == ["id", "text"]
    assert rows(path, columns=["id", "absent"])[0] == {"id": IDS[0]} and rows(path, columns=["absent"])[0] == {}


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet"])
def test_integers_beside_nulls_stay_whole_and_messages_stay_lists(tmp_path, name):
    chat = [{"role": "user", "content": "2+2?"}]
    path = written(tmp_path / name, [{"id": 2**53 + 1, "chat": chat}, {"id": None, "chat": chat}])
    assert [id_text(row["id"]) for row in rows(path)] == ["9007199254740993", None]
    assert rows(path)[0]["chat"] == chat and isinstance(rows(path)[0]["chat"], list)


def test_ids_and_numbers_of_cells():
    assert id_text(7) == "7" and id_text(0) == "0" and id_text(float("nan")) is None and id_text("") is None
    assert id_text(3.0) == id_text(3) == "3" and id_text(0.5) == "0.5", "pandas writes integers beside nulls as floats"
    with pytest.raises(InvalidInputError, match="exact integer"):
        id_text(2.0**53)
    for value in ([1], {"a": 1}, (1,)):
        with pytest.raises(InvalidInputError, match="an id must be text or a number"):
            id_text(value)
    assert number("1e0") == 1.0 and number(True) == 1.0 and number(" 2 ") == 2.0
    assert all(number(value) != number(value) for value in (None, "", float("nan")))
    for value in ("x", "1_0", [1], {}, 10**400):
        with pytest.raises(ValueError):
            number(value)


@pytest.mark.parametrize(
    ("name", "content", "problems"),
    [
        ("t.jsonl", b'{"id": 1}\n{"id"\n[2]\n\n{"id": "\xe9"}\n{"id": 3}', {2: "JSON", 3: "object", 5: "UTF-8"}),
        ("t.csv", b'id,x\n1,a\n2\n"3\n3",\xe9\n\n4,b,c\n3,d', {3: "2 fields", 4: "byte 0xe9", 7: "2 fields"}),
        ("t.csv", b'id,x\n1,a\n3,d\n4,"e\n5,f\n', {4: "unexpected end of data"}),
        ("t.json", b'[{"id": 1}, 2, {"id": 3}]', {2: "object"}),
    ],
)
def test_a_damaged_record_costs_that_record(tmp_path, name, content, problems):
    path = tmp_path / name
    path.write_bytes(content)
    found: dict[int, str] = {}
    kept = rows(path, malformed=found.__setitem__)
    assert [str(row["id"]) for row in kept] == ["1", "3"]
    assert list(found) == list(problems) and all(problems[line] in reason for line, reason in found.items())
    with pytest.raises(InvalidInputError, match=rf"{name}, line {next(iter(problems))}: must"):
        rows(path)


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.json"])
def test_a_byte_order_mark_is_no_content(tmp_path, name):
    path = written(tmp_path / name, [{"id": "a"}])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert rows(path) == [{"id": "a"}] and column_names(path) == ["id"]


def test_cells_of_any_size(tmp_path):
    before = csv.field_size_limit()
    path = written(tmp_path / "t.csv", [{"id": "a", "text": "x" * 300_000}])
    assert len(rows(path)[0]["text"]) == 300_000 and csv.field_size_limit() == before


def test_damaged_files_are_one_error_that_names_the_file(tmp_path):
    whole = written(tmp_path / "t.jsonl.gz", [{"id": str(i)} for i in range(5000)]).read_bytes()
    parquet = written(tmp_path / "t.parquet", [{"id": str(i)} for i in range(5000)]).read_bytes()
    cases = {
        "cut.jsonl.gz": (whole[: len(whole) // 2], "must be a whole gzip file"),
        "no.csv.gz": (b"id\n1\n", "must be a whole gzip file"),
        "cut.parquet": (parquet[: len(parquet) // 2], "must be a whole parquet file"),
        "hurt.parquet": (
            parquet[:40] + b"\xff" * (len(parquet) - 600) + parquet[-560:],
            "must be a whole parquet file",
        ),
        "empty.parquet": (b"", "must be a whole parquet file"),
        "wide.csv": ("id\n1\n".encode("utf-16"), "UTF-8, but it is in UTF-16"),
        "empty.csv": (b"", "must be a header"),
        "twice.csv": (b"id,id\n1,2\n", "names 'id' twice"),
        "latin.csv": (b"id,caf\xe9\n1,2\n", "must be a header in UTF-8"),
        "cut.json": (b'[{"id": 1}, ', "must be a JSON array"),
        "t.xlsx": (b"PK", "must end in one of .parquet"),
    }
    for name, (content, message) in cases.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(InvalidInputError, match=message) as raised:
            rows(path, malformed=lambda line, reason: None)
        assert name in str(raised.value)
    with pytest.raises(FileNotFoundError):
        rows(tmp_path / "absent.parquet")
    (tmp_path / "nothing.jsonl").write_bytes(b"\n")
    assert rows(tmp_path / "nothing.jsonl") == [] and column_names(tmp_path / "nothing.jsonl") == []


def test_unnamed_columns_are_passed_over(tmp_path):
    (tmp_path / "t.csv").write_text(", id ,,\n0,a,,\n")
    assert rows(tmp_path / "t.csv") == [{"id": "a"}]
