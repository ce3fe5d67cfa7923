"""Logs with one row a visit: viprl's own history (parquet or JSONL) and CSV with any column names.

Needed of every row: step, prompt_id, successes, n_rollouts. Everything else of the history schema may be absent.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viprl.errors import MissingDependencyError
from viprl.replay.log import VisitLog
from viprl.replay.readers.lines import json_lines
from viprl.replay.readers.report import LogFormatError, ReadReport

COLUMNS = ("step", "prompt_id", "successes", "n_rollouts")
Row = tuple[str, int, Any, Any, Any, Any]  # file, line, then COLUMNS

NO_ROLLOUTS = "no rollout has a reward"


def read_visits(
    paths: Sequence[Path],
    report: ReadReport,
    *,
    columns: Mapping[str, str] | None = None,
    all_prompts: Sequence[str] | None = None,
) -> VisitLog:
    """A log from visit rows.

    Args:
        paths: parquet, JSONL (also .gz) or CSV files.
        report: filled.
        columns: canonical name -> column name in the file, for CSV and other people's parquet. ``success_rate`` may
            stand in for ``successes``.
        all_prompts: see ``VisitLog.build``.
    """
    names = {name: (columns or {}).get(name, name) for name in (*COLUMNS, "success_rate")}
    parts = []
    for path in paths:
        report.files += 1
        if path.suffix == ".parquet":
            parts.append(_from_parquet(path, names, report))
        else:
            rows = (
                _csv_rows(path, names, report) if path.suffix in (".csv", ".tsv") else _json_rows(path, names, report)
            )
            parts.append(_from_rows(rows, report))
    step, prompt_id, successes, rollouts = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not len(step):
        raise LogFormatError(f"a log must have at least one visit with rollouts, but {report.rows} rows gave none")
    report.kept = len(step)
    return VisitLog.build(step, prompt_id, successes, rollouts, all_prompts=all_prompts)


def _from_parquet(
    path: Path, names: Mapping[str, str], report: ReadReport
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    frame = parquet_frame(path, report)
    if frame is None:
        empty = np.empty(0)
        return empty.astype(np.int64), empty.astype(object), empty, empty.astype(np.int64)
    present = _present(set(frame.columns), names, path.name)
    report.rows += len(frame)
    import pandas as pd

    numbers = {
        name: pd.to_numeric(frame[present[name]], errors="coerce").to_numpy(np.float64, na_value=np.nan)
        for name in present
        if name != "prompt_id"
    }
    ids = frame[present["prompt_id"]].to_numpy(object)
    missing = np.asarray(frame[present["prompt_id"]].isna().to_numpy())
    step, n = numbers["step"], numbers["n_rollouts"]
    k = numbers["successes"] if "successes" in numbers else numbers["success_rate"] * n
    empty = (n == 0) & ~missing
    report.drop(NO_ROLLOUTS, int(empty.sum()))
    reasons = {
        "prompt_id is missing": missing,
        "step is not a whole number": ~_whole(step),
        "n_rollouts is not a whole number >= 0": ~(_whole(n) & (n >= 0)),
        "successes is not in [0, n_rollouts]": ~(_inside(k, n)),
    }
    bad = np.zeros(len(frame), dtype=bool)
    for reason, mask in reasons.items():
        for row in np.flatnonzero(mask & ~bad & ~empty):
            report.bad(path.name, int(row) + 1, reason)
        bad |= mask
    keep = ~bad & ~empty
    texts = np.array([str(i) for i in ids[keep]], dtype=object)
    return step[keep].astype(np.int64), texts, _snapped(k[keep]), n[keep].astype(np.int64)


def _from_rows(
    rows: Iterable[Row], report: ReadReport
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    steps: list[int] = []
    ids: list[str] = []
    successes: list[float] = []
    rollouts: list[int] = []
    for file, line, step, prompt_id, k, n in rows:
        try:
            step_number, count = float(step), float(n)
            hits = float(k)
        except (TypeError, ValueError):
            report.bad(file, line, "step, successes or n_rollouts is missing or not a number")
            continue
        if prompt_id is None or prompt_id == "":
            report.bad(file, line, "prompt_id is missing")
        elif not step_number.is_integer():
            report.bad(file, line, "step is not a whole number")
        elif not (count.is_integer() and count >= 0):
            report.bad(file, line, "n_rollouts is not a whole number >= 0")
        elif count == 0:
            report.drop(NO_ROLLOUTS)
        elif not -1e-9 <= hits <= count * (1 + 1e-9):
            report.bad(file, line, "successes is not in [0, n_rollouts]")
        else:
            steps.append(int(step_number))
            ids.append(str(prompt_id))
            successes.append(hits)
            rollouts.append(int(count))
    names = np.empty(len(ids), dtype=object)
    names[:] = ids
    return np.array(steps, np.int64), names, _snapped(np.array(successes, float)), np.array(rollouts, np.int64)


def _json_rows(path: Path, names: Mapping[str, str], report: ReadReport) -> Iterator[Row]:
    step, prompt_id, successes, rollouts, rate = (names[n] for n in (*COLUMNS, "success_rate"))
    for line, row in json_lines(path, report):
        k = row.get(successes)
        if k is None and rate in row:
            k = _product(row.get(rate), row.get(rollouts))
        yield path.name, line, row.get(step), row.get(prompt_id), k, row.get(rollouts)


def _csv_rows(path: Path, names: Mapping[str, str], report: ReadReport) -> Iterator[Row]:
    with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        header = next(reader, None)
        if header is None:
            raise LogFormatError(f"{path.name} is empty")
        present = _present({name.strip() for name in header}, names, path.name)
        place = {name: [h.strip() for h in header].index(column) for name, column in present.items()}
        for row in reader:
            if not row:
                continue
            report.rows += 1
            if len(row) != len(header):
                report.bad(path.name, reader.line_num, f"{len(row)} fields where the header has {len(header)}")
                continue
            n = row[place["n_rollouts"]]
            k = row[place["successes"]] if "successes" in place else _product(row[place["success_rate"]], n)
            yield path.name, reader.line_num, row[place["step"]], row[place["prompt_id"]].strip(), k, n


def parquet_frame(path: Path, report: ReadReport) -> Any:
    """The file as a DataFrame; None where it is damaged (noted in the report)."""
    try:
        import pandas as pd
        import pyarrow
    except ImportError as error:
        raise MissingDependencyError("reading parquet needs pandas and pyarrow: pip install 'viprl[report]'") from error
    try:
        return pd.read_parquet(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        report.rows += 1
        report.bad(path.name, 1, "the file is no readable parquet (cut off or damaged)")
        return None


def _present(found: set[str], names: Mapping[str, str], file: str) -> dict[str, str]:
    needed = {name: names[name] for name in COLUMNS}
    if needed["successes"] not in found and names["success_rate"] in found:
        needed["success_rate"] = names["success_rate"]
        del needed["successes"]
    absent = [f"{name} (column {column!r})" for name, column in needed.items() if column not in found]
    if absent:
        raise LogFormatError(
            f"{file} must have the columns step, prompt_id, successes and n_rollouts, but lacks {', '.join(absent)}; "
            f"it has {sorted(found)}. Other names are mapped by --columns successes=NAME,..."
        )
    return needed


def _product(rate: Any, count: Any) -> Any:
    try:
        return float(rate) * float(count)
    except (TypeError, ValueError):
        return None


def _whole(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.isfinite(values) & (values == np.floor(values))


def _inside(k: NDArray[np.float64], n: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.isfinite(k) & (k >= -1e-9) & (k <= n * (1 + 1e-9))


def _snapped(k: NDArray[np.float64]) -> NDArray[np.float64]:
    """Counts that a division and multiplication left a hair beside a whole number, made whole."""
    near = np.rint(k)
    return np.where(np.abs(k - near) < 1e-6, near, k)


def is_number(value: Any) -> bool:
    """True for finite ints, floats and bools."""
    return isinstance(value, int | float) and math.isfinite(value)
