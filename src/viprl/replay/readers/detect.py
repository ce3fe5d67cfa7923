"""Which format a path holds, and the one entry for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from viprl._tables import SUFFIXES, column_names, table_kind
from viprl.errors import ConfigurationError, InvalidInputError
from viprl.replay.log import VisitLog
from viprl.replay.readers.columns import check_columns
from viprl.replay.readers.report import LogFormatError, OnError, ReadReport
from viprl.replay.readers.trl_completions import looks_like_trl, read_trl
from viprl.replay.readers.verl_dump import looks_like_verl, read_verl
from viprl.replay.readers.visits import read_visits

FORMATS = ("history", "csv", "verl", "trl")
INSIDE = ("viprl_history", "history", "completions")


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
        format: "auto", or one of "history" and "csv" (tables with a row a visit or a row a rollout), "verl", "trl".
        on_error: what a malformed row does: "stop" raises at the end of the reading, "skip" counts it.
        columns: canonical column name -> name in the file, for tables.
        reward_column, success_at: for rollouts; see the readers.
        all_prompts: ids that fix the order of prompts.

    Returns:
        The log and what was found while reading it.

    Raises:
        ConfigurationError: ``columns`` that name no column of viprl's, or for a dump whose columns are fixed.
        LogFormatError: unknown format, or a malformed row with ``on_error="stop"``.
        FileNotFoundError: no such path.
    """
    columns = check_columns(columns)
    files = log_files(Path(path))
    kind = detect(files, columns) if format == "auto" else format
    report = ReadReport(kind, on_error)
    if kind not in FORMATS:
        raise LogFormatError(f"format must be auto or one of {', '.join(FORMATS)}, but got {kind!r}")
    if columns and kind in ("verl", "trl"):
        raise ConfigurationError(f"the columns of {kind}'s dumps are fixed but for --reward-column, but got --columns")
    if kind == "verl":
        log = read_verl(
            files, report, reward_column=reward_column or "score", success_at=success_at, all_prompts=all_prompts
        )
    elif kind == "trl":
        log = read_trl(files, report, reward_column=reward_column, success_at=success_at, all_prompts=all_prompts)
    else:
        named = columns | ({} if reward_column is None else {"reward": reward_column})
        log = read_visits(files, report, columns=named, success_at=success_at, all_prompts=all_prompts)
    report.drop("the prompt stood in the same step already", log.repeats)
    report.drop("the step was run again later (after a crash), and the later run counts", log.replaced)
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
        found = sorted(p for p in folder.glob("*") if _is_table(p) and not p.name.startswith("."))
        if found:
            kinds = {p.suffix for p in found}
            if len(kinds) > 1:
                raise LogFormatError(f"{folder} must hold files of one kind, but it has {', '.join(sorted(kinds))}")
            return found
    raise LogFormatError(f"{path} has no log files ({', '.join(SUFFIXES)})")


def detect(paths: Sequence[Path], columns: Mapping[str, str] | None = None) -> str:
    """Format of a run's files by the kind and columns of the first that can be read; with ``columns`` it is a table.

    Raises:
        LogFormatError: none can be read.
    """
    found: list[str] = []
    error = InvalidInputError("a run must have at least one file")
    for path in paths:
        try:
            found = column_names(path)
            break
        except InvalidInputError as damage:
            error = damage
    else:
        raise LogFormatError(str(error)) from error
    kind = table_kind(path)
    if kind == "json" and not found:
        raise LogFormatError(f"{path.name} must hold JSON objects, one a line, but its lines hold none")
    if not columns and kind == "parquet" and looks_like_trl(found):
        return "trl"
    if not columns and kind == "json" and looks_like_verl(found):
        return "verl"
    return "csv" if kind == "csv" else "history"


def _is_table(path: Path) -> bool:
    return path.is_file() and Path(path.name.lower().removesuffix(".gz")).suffix in SUFFIXES
