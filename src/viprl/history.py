"""Per-prompt history of a run: its rows, and part files that can be cut back to a checkpoint.

One row per group that has a reward: step (one generation batch), prompt_id, visit (from 0), successes, n_rollouts
(rollouts whose success, or reward, is known), reward_mean and reward_var (of the rewards as trained; the variance is
unbiased, None below two), predicted_mean and predicted_bernoulli_variance (before the step), group_size (planned),
tokens, seconds (None where not told); where prompts were selected: candidates (how many), price (value of the step's
last rollout), kept_for ("value", "exploration", "rest", or "uniform" while selection is paused), waited (passes since
its last group). A success is what the predictor learns: the upper of two reward values, or what
was named a success; 0 <= successes <= n_rollouts always holds. With a predictor of real rewards there is none, and
successes and both predictions are None: such a row is read by its reward_mean and reward_var.

A flush writes one part file, whole or not at all; resuming from a checkpoint drops what was written after it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from viprl._arrays import FloatArray
from viprl._files import replacing, write_text
from viprl.errors import InvalidInputError, MissingDependencyError

if TYPE_CHECKING:
    from viprl.feedback.rewards import Rewards
    from viprl.plan import Plan


# name -> (type, may be null)
HISTORY_SCHEMA: dict[str, tuple[str, bool]] = {
    "step": ("int64", False),
    "prompt_id": ("string", False),
    "visit": ("int64", False),
    "successes": ("float64", True),
    "n_rollouts": ("int64", False),
    "reward_mean": ("float64", True),
    "reward_var": ("float64", True),
    "predicted_mean": ("float64", True),
    "predicted_bernoulli_variance": ("float64", True),
    "group_size": ("int64", True),
    "tokens": ("int64", True),
    "seconds": ("float64", True),
    "candidates": ("int64", True),
    "price": ("float64", True),
    "kept_for": ("string", True),
    "waited": ("float64", True),
}
HISTORY_COLUMNS = tuple(HISTORY_SCHEMA)

_PART = re.compile(r"^part-(\d{8})-(\d{8})\.(parquet|jsonl)$")


def history_columns(
    plan: Plan,
    rewards: Rewards,
    outcomes: Rewards | None,
    step: int,
    visits: list[int],
    tokens: FloatArray | None,
    seconds: FloatArray | None,
) -> dict[str, list[Any]]:
    """One step's columns, B entries each; ``visits`` are each prompt's earlier groups, tokens and seconds are (B,).

    Args:
        rewards: as trained.
        outcomes: 0 and 1 for every rollout whose success is known; None where there is no such thing as success.
    """
    counted = rewards if outcomes is None else outcomes
    return {
        "step": [step] * len(plan),
        "prompt_id": [str(prompt_id) for prompt_id in plan.prompt_ids],
        "visit": visits,
        "successes": _nullable(None if outcomes is None else np.rint(outcomes.means * outcomes.counts), len(plan)),
        "n_rollouts": counted.counts.tolist(),
        "reward_mean": _nullable(rewards.means, len(plan)),
        "reward_var": _nullable(rewards.variances, len(plan)),
        "predicted_mean": _nullable(None if outcomes is None else plan.prediction.mean, len(plan)),
        "predicted_bernoulli_variance": _nullable(
            None if outcomes is None else plan.prediction.bernoulli_variance, len(plan)
        ),
        "group_size": plan.group_sizes.tolist(),
        "tokens": _nullable(None if tokens is None else tokens.astype(np.int64), len(plan)),
        "seconds": _nullable(seconds, len(plan)),
        **_selection_columns(plan),
    }


def _selection_columns(plan: Plan) -> dict[str, list[Any]]:
    selected, length = plan.selected, len(plan)
    if selected is None:
        return {name: [None] * length for name in ("candidates", "price", "kept_for", "waited")}
    return {
        "candidates": [len(selected)] * length,
        "price": [selected.price] * length,
        "kept_for": selected.kept_for,
        "waited": selected.waited[selected.kept].tolist(),
    }


def rows_of(columns: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """The rows of one step's columns, of groups that have rollouts."""
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return [row for row in rows if row["n_rollouts"] > 0]


def _nullable(values: Any, length: int) -> list[Any]:
    """A column with None for NaN, or of None alone."""
    return [None] * length if values is None else [None if value != value else value for value in values.tolist()]


class HistoryWriter:
    """Collects history rows and writes them as part files of one folder.

    Args:
        folder: created on the first flush.
        format: "parquet" (needs pyarrow) or "jsonl".
        flush_every: a part is written once rows of this many steps have been collected; ``flush`` writes at any time.

    Example:
        >>> writer = HistoryWriter("run/history", format="jsonl")          # doctest: +SKIP
        >>> writer.add(allocator.history_rows()); writer.flush()           # doctest: +SKIP
    """

    def __init__(
        self, folder: str | Path, *, format: Literal["parquet", "jsonl"] = "parquet", flush_every: int = 50
    ) -> None:
        if format not in ("parquet", "jsonl"):
            raise InvalidInputError(f"`format` must be 'parquet' or 'jsonl', but got {format!r}")
        if flush_every < 1:
            raise InvalidInputError(f"flush_every >= 1 must hold, but got {flush_every}")
        if format == "parquet":
            _pyarrow()
        self.folder = Path(folder)
        self.format = format
        self.flush_every = flush_every
        self._rows: list[dict[str, Any]] = []
        self._last = -1

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Collect the rows of one step (or of several, in order); see ``HISTORY_SCHEMA``.

        Raises:
            InvalidInputError: a column is missing or unknown, a required value is null, or the steps go backwards.
        """
        for row in rows:
            checked = _checked(row)
            if checked["step"] < self._last:
                raise InvalidInputError(
                    f"history steps must not go backwards, but got step {checked['step']} after {self._last}"
                )
            self._last = checked["step"]
            self._rows.append(checked)
        if self._rows and self._last - self._rows[0]["step"] + 1 >= self.flush_every:
            self.flush()

    def flush(self) -> Path | None:
        """Write what was collected as one part; returns its path, None where there was nothing to write."""
        if not self._rows:
            return None
        path = self._write(self._rows)
        self._rows = []
        return path

    def cut_back(self, next_step: int) -> int:
        """Drop every row with ``step >= next_step``, written or collected; returns how many were dropped.

        Args:
            next_step: the first step that the resumed run will produce; 0 empties the history.
        """
        kept = [row for row in self._rows if row["step"] < next_step]
        dropped = len(self._rows) - len(kept)
        self._rows = kept
        for path, first, last in parts(self.folder):
            if last < next_step:
                continue
            rows = read_part(path)
            keep = [row for row in rows if row["step"] < next_step]
            dropped += len(rows) - len(keep)
            if first < next_step and keep:
                self._write(keep)
            path.unlink()
        self._last = next_step - 1 if next_step > 0 else -1
        return dropped

    def set_aside(self) -> Path | None:
        """Move an earlier run's parts out of the way, to ``<folder>-1``, ``<folder>-2``, ...; returns where to."""
        if not parts(self.folder):
            return None
        number = 1
        while (target := self.folder.with_name(f"{self.folder.name}-{number}")).exists():
            number += 1
        self.folder.rename(target)
        return target

    def _write(self, rows: list[dict[str, Any]]) -> Path:
        path = self.folder / f"part-{rows[0]['step']:08d}-{rows[-1]['step']:08d}.{self.format}"
        if self.format == "parquet":
            _write_parquet(rows, path)
        else:
            write_text(path, "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows))
        return path


def parts(folder: str | Path) -> list[tuple[Path, int, int]]:
    """(path, first step, last step) of every part of a folder, in order of steps."""
    root = Path(folder)
    found = []
    for path in root.iterdir() if root.is_dir() else ():
        match = _PART.match(path.name)
        if match:
            found.append((path, int(match[1]), int(match[2])))
    return sorted(found, key=lambda part: (part[1], part[2]))


def read_part(path: str | Path) -> list[dict[str, Any]]:
    """Rows of one part file."""
    path = Path(path)
    if path.suffix == ".parquet":
        _, parquet = _pyarrow()
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
        return rows
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _checked(row: Mapping[str, Any]) -> dict[str, Any]:
    needed = {name for name, (_, nullable) in HISTORY_SCHEMA.items() if not nullable}
    if not needed <= set(row) <= set(HISTORY_SCHEMA):
        raise InvalidInputError(
            f"a history row must have the columns {sorted(needed)} and none but {HISTORY_COLUMNS}, but got "
            f"{sorted(row)}"
        )
    checked: dict[str, Any] = {}
    for name, (kind, nullable) in HISTORY_SCHEMA.items():
        value = row.get(name)
        if value is not None and kind == "float64" and value != value:
            value = None
        if value is None:
            if not nullable:
                raise InvalidInputError(f"history column {name!r} must not be null, but got {dict(row)}")
            checked[name] = None
        else:
            checked[name] = {"int64": int, "float64": float, "string": str}[kind](value)
    return checked


def _write_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    arrow, parquet = _pyarrow()
    types = {"int64": arrow.int64(), "float64": arrow.float64(), "string": arrow.string()}
    fields = [arrow.field(name, types[kind], nullable) for name, (kind, nullable) in HISTORY_SCHEMA.items()]
    schema = arrow.schema(fields)
    with replacing(path) as file:
        parquet.write_table(arrow.Table.from_pylist(rows, schema=schema), file)


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError.of("a parquet history", "pyarrow") from error
    return pyarrow, pyarrow.parquet
