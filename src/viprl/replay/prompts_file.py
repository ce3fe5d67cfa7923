"""The prompts of a run: ids, texts, numeric side information and embeddings from files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from viprl.errors import InvalidInputError
from viprl.replay.lineup import Prompts
from viprl.replay.readers.lines import json_lines
from viprl.replay.readers.report import ReadReport
from viprl.replay.readers.visits import parquet_frame

TEXT_COLUMNS = ("prompt_text", "text", "prompt", "problem", "question")


def read_prompts(
    path: str | Path,
    *,
    id_column: str = "prompt_id",
    text_column: str | None = None,
    side_information: Sequence[str] = (),
    embeddings: str | Path | None = None,
) -> Prompts:
    """Prompts from a parquet, JSONL or CSV file.

    Args:
        path: the table; its row order is the order of prompts.
        id_column: of stable prompt ids.
        text_column: of texts; by default the first of prompt_text, text, prompt, problem, question that exists.
        side_information: numeric columns for the predictor; missing values are allowed.
        embeddings: a .npy file with one row a prompt, in the table's order, or a .npz with ``embeddings`` and
            ``prompt_ids``.

    Raises:
        InvalidInputError: missing columns, repeated ids, embeddings that do not fit.
    """
    frame = _table(Path(path))
    for column in (id_column, *([text_column] if text_column else []), *side_information):
        if column not in frame:
            raise InvalidInputError(
                f"{path} must have the column {column!r}, but it has {sorted(map(str, frame.columns))}"
            )
    ids = tuple(str(i) for i in frame[id_column])
    if len(set(ids)) != len(ids):
        raise InvalidInputError(f"prompt ids must be unique, but {len(ids) - len(set(ids))} of {path} are repeated")
    text = text_column or next((c for c in TEXT_COLUMNS if c in frame and _is_text(frame[c])), None)
    import pandas as pd

    side = {c: pd.to_numeric(frame[c], errors="coerce").to_numpy(np.float64, na_value=np.nan) for c in side_information}
    for column, values in side.items():
        if not np.isfinite(values).any():
            raise InvalidInputError(f"side information must be numbers, but the column {column!r} has none")
    return Prompts(
        ids,
        None if embeddings is None else read_embeddings(Path(embeddings), ids),
        None if text is None else [str(t) for t in frame[text]],
        side or None,
    )


def read_embeddings(path: Path, ids: Sequence[str]) -> Any:
    """(N, D) float32 rows for the ids.

    Raises:
        InvalidInputError: the wrong number of rows, or ids without a row.
    """
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as data:
            if "embeddings" not in data or "prompt_ids" not in data:
                raise InvalidInputError(f"{path} must hold `embeddings` and `prompt_ids`, but holds {sorted(data)}")
            rows = {str(name): row for row, name in enumerate(data["prompt_ids"])}
            absent = [i for i in ids if i not in rows]
            if absent:
                raise InvalidInputError(f"every prompt needs an embedding, but {len(absent)} have none ({absent[0]!r})")
            return np.asarray(data["embeddings"][[rows[i] for i in ids]], dtype=np.float32)
    vectors = np.load(path, allow_pickle=False)
    if vectors.ndim != 2 or len(vectors) != len(ids):
        raise InvalidInputError(f"embeddings must be ({len(ids)}, D), one row a prompt, but {path} is {vectors.shape}")
    return vectors.astype(np.float32)


def _table(path: Path) -> Any:
    import pandas as pd

    report = ReadReport("prompts")
    if path.suffix == ".parquet":
        return parquet_frame(path, report)
    if path.suffix in (".csv", ".tsv"):
        return pd.read_csv(path, sep="\t" if path.suffix == ".tsv" else ",")
    return pd.DataFrame([row for _, row in json_lines(path, report)])


def _is_text(column: Any) -> bool:
    return bool(len(column)) and isinstance(column.iloc[0], str)
