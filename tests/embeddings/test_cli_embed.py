"""``viprl embed``: files of every kind, good and bad."""

from __future__ import annotations

import json

import numpy as np
import pytest

from viprl.cli import main
from viprl.embeddings import load_embeddings

ROWS = [{"prompt_id": "a", "prompt": "What is 1 + 1?"}, {"prompt_id": "b", "prompt": "What is 2 + 2?"}]


def embed(*arguments):
    return main(["embed", *map(str, arguments), "--model", "hashed-ngrams", "--no-cache"])


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_jsonl(tmp_path, capsys):
    assert embed(jsonl(tmp_path / "p.jsonl", ROWS)) == 0
    assert "2 prompts, 2 distinct texts, 2 computed" in capsys.readouterr().out
    read = load_embeddings(tmp_path / "p.embeddings.npz")
    assert read.prompt_ids == ("a", "b") and read.embeddings.shape == (2, 512) and read.model == "hashed-ngrams"


def test_csv_and_parquet_give_the_same(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(ROWS)
    frame.to_csv(tmp_path / "p.csv", index=False)
    frame.to_parquet(tmp_path / "p.parquet")
    jsonl(tmp_path / "p.jsonl", ROWS)
    files = []
    for ending in ("csv", "parquet", "jsonl"):
        assert embed(tmp_path / f"p.{ending}", "-o", tmp_path / f"{ending}.npz") == 0
        files.append(load_embeddings(tmp_path / f"{ending}.npz"))
    assert files[0].prompt_ids == files[1].prompt_ids == files[2].prompt_ids
    assert np.array_equal(files[0].embeddings, files[1].embeddings)
    assert np.array_equal(files[0].embeddings, files[2].embeddings)


def test_columns_and_conversations(tmp_path):
    rows = [{"nr": 7, "chat": [{"role": "user", "content": "What is 1 + 1?"}], "text": "another column"}]
    assert embed(jsonl(tmp_path / "p.jsonl", rows), "--text-column", "chat", "--id-column", "nr") == 0
    assert embed(jsonl(tmp_path / "q.jsonl", ROWS[:1])) == 0
    chat, plain = load_embeddings(tmp_path / "p.embeddings.npz"), load_embeddings(tmp_path / "q.embeddings.npz")
    assert chat.prompt_ids == ("7",) and np.array_equal(chat.embeddings, plain.embeddings)


def test_without_ids_the_text_names_the_prompt(tmp_path):
    assert embed(jsonl(tmp_path / "p.jsonl", [{"question": row["prompt"]} for row in ROWS])) == 0
    ids = load_embeddings(tmp_path / "p.embeddings.npz").prompt_ids
    assert len(set(ids)) == 2 and all(len(name) == 16 for name in ids)


@pytest.mark.parametrize(
    ("name", "content", "arguments", "message"),
    [
        ("p.jsonl", "", [], "at least one prompt"),
        ("p.jsonl", "\n\n", [], "at least one prompt"),
        ("p.csv", "prompt\n", [], "at least one prompt"),
        ("p.jsonl", '{"prompt": "a"}\n{"prompt": \n', [], "line 2: must be JSON"),
        ("p.jsonl", '{"prompt": "a"}\n[1]\n', [], "line 2: must be a JSON object, but is list"),
        ("p.jsonl", b'{"prompt": "a"}\n{"prompt": "\xff"}\n', [], "line 2: must be UTF-8"),
        ("p.jsonl", '{"x": "a"}\n', [], "one of the columns"),
        ("p.jsonl", '{"prompt": "a"}\n', ["--text-column", "y"], "must have the column 'y', but has ['prompt']"),
        ("p.jsonl", '{"prompt": "a"}\n', ["--id-column", "y"], "must have the column 'y', but has ['prompt']"),
        ("p.jsonl", '{"prompt": "a"}\n{"x": 1}\n', [], "row 2: 'prompt' must be a text"),
        ("p.jsonl", '{"prompt": "a"}\n{"prompt": " "}\n', [], "row 2: 'prompt' must be a text that is not empty"),
        ("p.jsonl", '{"prompt": 5}\n', [], "row 1: 'prompt' must be a text"),
        ("p.jsonl", '{"prompt": null}\n', [], "row 1: 'prompt' must be a text"),
        ("p.jsonl", '{"id": 1, "prompt": "a"}\n{"id": 1, "prompt": "b"}\n', [], "different texts"),
        ("p.csv", "id,prompt\n1,a\n2\n", [], "line 3: must have the header's 2 fields"),
        ("p.csv", "id,prompt\n1,a,b\n", [], "line 2: must have the header's 2 fields"),
        ("p.csv", b"prompt\n\xff\xfe\n", [], "line 2: must be UTF-8"),
        ("p.parquet", "no parquet", [], "must be a whole parquet file"),
        ("p.txt", "text", [], "a table must end in"),
        ("p.jsonl", '{"prompt": "a"}\n', ["-o", "e.npy"], "must end in .npz"),
    ],
)
def test_bad_files_are_one_clear_line(tmp_path, capsys, name, content, arguments, message):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert embed(path, *arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and "Traceback" not in error
    assert not list(tmp_path.glob("*.npz")), "nothing is written"


def test_rows_of_one_prompt_are_merged_and_said(tmp_path, capsys):
    assert embed(jsonl(tmp_path / "p.jsonl", [{"prompt": "a"}, {"prompt": "b"}, {"prompt": "a"}])) == 0
    printed = capsys.readouterr()
    assert "1 of 3 rows" in printed.err and printed.out.startswith("2 prompts")


def test_absent_file(tmp_path, capsys):
    assert embed(tmp_path / "absent.jsonl") == 2
    assert "No such file" in capsys.readouterr().err


def test_long_texts_are_reported(tmp_path, capsys, monkeypatch):
    from viprl.embeddings import hashed

    monkeypatch.setattr(hashed.HashedNgrams, "window", 10)
    assert embed(jsonl(tmp_path / "p.jsonl", ROWS)) == 0
    assert "2 of 2 texts are longer than the 10 tokens" in capsys.readouterr().err
