"""TRL's completions parquet (``log_completions=True``): completions/completions_00001.parquet, one file a log step.

A row is one completion: step, prompt, completion, one column for each reward function, advantage, and extra columns. A
file holds the newest ``generation_batch_size`` completions at the time of logging, so

- one generation occurs in several files when the trainer logs more often than it generates (dropped here: rows at the
  head of a file that end the file before);
- generations are lost when it logs less often;
- completions of an evaluation stand among those of training, with nothing to tell them by.

There are no ids: a prompt is known by its text, and the completions of one text in one generation are one group.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from viprl._tables import Row, number
from viprl.replay.log import VisitLog
from viprl.replay.readers.report import LogFormatError, ReadReport
from viprl.replay.readers.rollouts import RolloutTable
from viprl.replay.readers.rows import is_whole, rows_of

FIXED = ("step", "prompt", "completion", "advantage")
_NAME = re.compile(r"completions_(\d+)\.parquet$")


def looks_like_trl(columns: Sequence[str]) -> bool:
    """True for the columns of a TRL completions file."""
    return all(name in columns for name in ("prompt", "completion", "advantage"))


def read_trl(
    paths: Sequence[Path],
    report: ReadReport,
    *,
    reward_column: str | None = None,
    success_at: float | None = None,
    all_prompts: Sequence[str] | None = None,
) -> VisitLog:
    """A log from TRL's completion files.

    Args:
        paths: the files of a run.
        report: filled.
        reward_column: the reward; needed where several numeric columns could be it.
        success_at, all_prompts: see ``RolloutTable.visits``.

    Raises:
        LogFormatError: no column, or several, that could be the reward.
    """
    table = RolloutTable()
    before: list[Any] = []
    steps: list[int] = []
    for path in sorted(paths, key=_number):
        rows = list(rows_of(path, report))
        if not rows:
            continue
        found = list(rows[0][1])
        if not looks_like_trl(found):
            report.bad(path.name, 1, f"must have the columns prompt, completion and advantage, but has {found}")
            continue
        reward = reward_column or _reward_column([row for _, row in rows], path.name)
        if reward not in found:
            raise LogFormatError(f"the reward column must be in {path.name}, but got {reward!r}; it has {found}")
        signatures = [repr([row[name] for name in ("prompt", "completion", reward, "advantage")]) for _, row in rows]
        repeated = overlap(before, signatures)
        report.drop("repeats of a generation that an earlier file holds", repeated)
        before = signatures
        steps.append(_number(path)[0])
        _add(table, rows[repeated:], reward, path, report)
    log = table.visits(report, success_at=success_at, all_prompts=all_prompts)
    _notices(report, log, [s for s in steps if s >= 0])
    return log


def overlap(before: Sequence[Any], rows: Sequence[Any]) -> int:
    """Length of the longest head of ``rows`` that is a tail of ``before``."""
    for length in range(min(len(before), len(rows)), 0, -1):
        if before[-length] == rows[0] and list(before[-length:]) == list(rows[:length]):
            return length
    return 0


def _add(table: RolloutTable, rows: list[tuple[int, Row]], reward: str, path: Path, report: ReadReport) -> None:
    """Adds the new rows of one file."""
    for line, row in rows:
        text = _text(row["prompt"])
        try:
            points, step = number(row[reward]), number(row.get("step", _number(path)[0]))
        except ValueError:
            report.bad(path.name, line, f"`step` or `{reward}` is not a number")
            continue
        if np.isnan(points):
            report.drop("the reward is missing")
        elif text is None:
            report.bad(path.name, line, "`prompt` is neither text nor messages")
        elif np.isinf(points):
            report.bad(path.name, line, "infinite reward")
        elif not is_whole(step):
            report.bad(path.name, line, "`step` is not a whole number")
        else:
            table.add(int(step), (path.name, table.hash_of(text)), text, points)


def _text(prompt: Any) -> Any:
    """The prompt as text or list of messages; None where it is neither."""
    if isinstance(prompt, str):
        return prompt
    messages = isinstance(prompt, list) and prompt and all(isinstance(m, dict) and "role" in m for m in prompt)
    return prompt if messages else None


def _reward_column(rows: list[Row], name: str) -> str:
    columns = {c: [row[c] for row in rows if row.get(c) is not None] for c in rows[0] if c not in FIXED}
    numeric = [c for c, values in columns.items() if values and all(isinstance(v, int | float) for v in values)]
    if len(numeric) == 1:
        return str(numeric[0])
    what = "no numeric column" if not numeric else f"several numeric columns ({', '.join(map(str, numeric))})"
    raise LogFormatError(f"one column of {name} must be the reward, but there is {what}; name it: --reward-column NAME")


def _notices(report: ReadReport, log: VisitLog, steps: list[int]) -> None:
    report.notice(
        "TRL's files do not say which completions were evaluation; if the run evaluated, they are counted as training"
    )
    gaps = np.diff(steps)
    if len(gaps) and gaps.max() > 1:
        report.notice(
            f"files are up to {gaps.max()} steps apart: generations between two files (logging_steps > 1) are lost"
        )
    sizes = Counter(log.rollouts.tolist())
    usual = sizes.most_common(1)[0][0]
    double = sum(count for size, count in sizes.items() if size > usual and size % usual == 0)
    if double:
        report.notice(
            f"{double} groups have a multiple of the usual {usual} rollouts: a prompt that stood twice in a batch "
            "cannot be told from a larger group"
        )


def _number(path: Path) -> tuple[int, str]:
    match = _NAME.search(path.name)
    return (int(match[1]) if match else -1), path.name
