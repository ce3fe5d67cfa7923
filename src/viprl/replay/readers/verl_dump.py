"""verl's JSONL dumps: ``trainer.rollout_data_dir`` and ``trainer.validation_data_dir``, one file a step.

A row is one output: input, output, gts, score, step and further columns; the default trainer adds uid, the key
``{sample}_{rollout}_{output}``. The sample's part is made anew every step, so it tells groups apart within a step and
nothing more: the prompt is known by its rendered text. Rows whose uid starts with "pad" are padding. An agent's
session may have several outputs; the reward of a rollout is that of the last. Older trainers write no uid: there the
rollouts of the same text in one step are one group.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from viprl.replay.log import VisitLog
from viprl.replay.readers.report import ReadReport
from viprl.replay.readers.rollouts import RolloutTable
from viprl.replay.readers.rows import is_whole, rows_of

NEEDED = ("input", "output")


def looks_like_verl(columns: Collection[str]) -> bool:
    """True for the columns of a verl dump."""
    return all(name in columns for name in NEEDED) and ("score" in columns or "gts" in columns)


def is_number(value: Any) -> bool:
    """True for finite ints, floats and bools."""
    return isinstance(value, int | float) and math.isfinite(value)


def read_verl(
    paths: Sequence[Path],
    report: ReadReport,
    *,
    reward_column: str = "score",
    success_at: float | None = None,
    all_prompts: Sequence[str] | None = None,
) -> VisitLog:
    """A log from verl's dumps, in the order of their steps.

    Args:
        paths: the files of a dump folder.
        report: filled.
        reward_column: which number of a row is the reward; ``acc`` where a reward function reports it.
        success_at, all_prompts: see ``RolloutTable.visits``.
    """
    table = RolloutTable()
    for path in sorted(paths, key=_step_of):
        for step, group, prompt, reward in _last_outputs(_rows(path, report, reward_column)):
            table.add(step, group, prompt, reward)
    log = table.visits(report, success_at=success_at, all_prompts=all_prompts)
    if log.n_steps > 1 and len(log) == log.n_steps * len(set(log.rows.tolist())):
        report.notice("every step has the same prompts: this looks like a validation dump, not like training")
    return log


def _rows(path: Path, report: ReadReport, reward_column: str) -> Iterator[tuple[int, str, str, float]]:
    """(step, uid or "", input, reward) of every row that counts."""
    for line, row in rows_of(path, report):
        uid, prompt, reward = row.get("uid"), row.get("input"), row.get(reward_column)
        step = row.get("step", _step_of(path)[0])
        if isinstance(uid, str) and uid.startswith("pad"):
            report.drop("padding rows")
        elif not isinstance(prompt, str):
            report.bad(path.name, line, "`input` is missing or not text")
        elif isinstance(step, bool) or not is_number(step) or not is_whole(step) or step < 0:
            report.bad(path.name, line, "`step` is not a whole number")
        elif reward is None or reward != reward:
            report.drop("the reward is missing")
        elif not is_number(reward):
            report.bad(path.name, line, f"`{reward_column}` is not a finite number")
        elif uid is not None and not isinstance(uid, str):
            report.bad(path.name, line, "`uid` is not text")
        else:
            if not uid:
                report.notice(
                    "the dump has no uid: rollouts of one text in one step were taken as one group, so a prompt that "
                    "stood twice in a batch looks like one larger group"
                )
            yield int(step), uid or "", prompt, float(reward)


def _last_outputs(rows: Iterator[tuple[int, str, str, float]]) -> Iterator[tuple[int, str, str, float]]:
    """(step, group, input, reward) of each rollout: of several outputs of one session the last."""
    sessions: dict[tuple[int, str, str], tuple[int, str, float]] = {}
    for step, uid, prompt, reward in rows:
        parts = uid.rsplit("_", 2)
        if len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit():
            key, output = (step, parts[0], parts[1]), int(parts[2])
            # the first output's input is the prompt itself; later ones carry the conversation so far
            first = sessions.get(key)
            if first is None or output >= first[0]:
                sessions[key] = (output, prompt if first is None else first[1], reward)
        else:
            yield step, uid or prompt, prompt, reward
    for (step, sample, _), (_, prompt, reward) in sessions.items():
        yield step, sample, prompt, reward


def _step_of(path: Path) -> tuple[int, str]:
    return (int(path.stem) if path.stem.isdigit() else -1), path.name
