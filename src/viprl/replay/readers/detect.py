"""Which format a path holds, and the one entry for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from viprl.replay.log import VisitLog
from viprl.replay.readers.lines import first_object
from viprl.replay.readers.report import LogFormatError, OnError, ReadReport
from viprl.replay.readers.trl_completions import looks_like_trl, read_trl
from viprl.replay.readers.verl_dump import looks_like_verl, read_verl
from viprl.replay.readers.visits import parquet_frame, read_visits

FORMATS = ("history", "csv", "verl", "trl")
INSIDE = ("viprl_history", "history", "completions")
SUFFIXES = (".parquet", ".jsonl", ".csv", ".tsv", ".gz", ".json")


def read_log(
    path: str | Path,
    *,
    format: str = "auto",
    on_error: OnError = "stop",
    columns: Mapping[str, str] | None = None,
    reward_column: str | None = None,
    success_at: float | None = None,
    all_prompts: Sequence[str] | None = None,
) -> tuple[VisitLog, ReadReport]:
    """Read a recorded run.

    Args:
        path: a file, or a folder with the files of one run (a history's parts, verl's step files, TRL's completions).
        format: "auto", or one of "history" (viprl's own, parquet or JSONL), "csv", "verl", "trl".
        on_error: what a malformed row does: "stop" raises, "skip" counts it.
        columns: canonical column name -> name in the file, for visit logs.
        reward_column, success_at: for rollout dumps; see the readers.
        all_prompts: ids that fix the order of prompts.

    Returns:
        The log and what was found while reading it.

    Raises:
        LogFormatError: unknown format, or a malformed row with ``on_error="stop"``.
        FileNotFoundError: no such path.
    """
    files = log_files(Path(path))
    kind = detect(files[0], columns) if format == "auto" else format
    report = ReadReport(kind, on_error)
    if kind == "verl":
        log = read_verl(
            files, report, reward_column=reward_column or "score", success_at=success_at, all_prompts=all_prompts
        )
    elif kind == "trl":
        log = read_trl(files, report, reward_column=reward_column, success_at=success_at, all_prompts=all_prompts)
    elif kind in ("history", "csv"):
        log = read_visits(files, report, columns=columns, all_prompts=all_prompts)
    else:
        raise LogFormatError(f"format must be auto or one of {FORMATS}, but got {kind!r}")
    report.drop("the prompt stood in the same step already", log.repeats)
    return log, report


def log_files(path: Path) -> list[Path]:
    """The file itself, or the log files of a folder, by name.

    Raises:
        FileNotFoundError: no such path.
        LogFormatError: a folder without log files.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(f"no such file or folder: {path}")
    # a run's output folder has much else beside its log: known places inside it come first
    for folder in (*(path / name for name in INSIDE), path):
        found = sorted(p for p in folder.glob("*") if p.suffix in SUFFIXES and not p.name.startswith("."))
        if found:
            kinds = {p.suffix for p in found}
            if len(kinds) > 1:
                raise LogFormatError(f"{folder} must hold files of one kind, but it has {', '.join(sorted(kinds))}")
            return found
    raise LogFormatError(f"{path} has no log files ({', '.join(SUFFIXES)})")


def detect(path: Path, columns: Mapping[str, str] | None = None) -> str:
    """Format of a file by its suffix and first row.

    Raises:
        LogFormatError: nothing known.
    """
    if path.suffix in (".csv", ".tsv"):
        return "csv"
    if path.suffix == ".parquet":
        frame = parquet_frame(path, ReadReport("", on_error="stop"))
        return "trl" if looks_like_trl(list(frame.columns)) else "history"
    row = first_object(path)
    if row is None:
        raise LogFormatError(f"{path.name} must hold JSON objects, one a line, but its first lines hold none")
    if looks_like_verl(row):
        return "verl"
    if (columns or {}).get("prompt_id", "prompt_id") in row:
        return "history"
    raise LogFormatError(
        f"{path.name} is no log that is known: a row has {sorted(row)}; expected step, prompt_id, successes and "
        "n_rollouts, or verl's input, output and score"
    )
