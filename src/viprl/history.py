"""Per-prompt history of a run: its rows, and part files that can be cut back to a checkpoint.

One row per group that has a reward: step (one generation batch), prompt_id, visit (from 0), successes (rewards mapped
to [0, 1] and summed), n_rollouts (rewards present), reward_mean, reward_var (unbiased; None below two rewards),
predicted_mean and predicted_bernoulli_variance (before the step), group_size (planned), tokens, seconds (None where not
told). A flush writes one part file under a temporary name and renames it, so a reader never meets half a part; resuming
from a checkpoint drops what was written after it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from viprl._arrays import FloatArray
from viprl._files import replacing, write_text
from viprl.errors import InvalidInputError, MissingDependencyError

if TYPE_CHECKING:
    from viprl.feedback.rewards import Rewards
    from viprl.plan import Plan
    from viprl.prediction.base import PromptId


# name -> (type, may be null)
HISTORY_SCHEMA: dict[str, tuple[str, bool]] = {
    "step": ("int64", False),
    "prompt_id": ("string", False),
    "visit": ("int64", False),
    "successes": ("float64", False),
    "n_rollouts": ("int64", False),
    "reward_mean": ("float64", True),
    "reward_var": ("float64", True),
    "predicted_mean": ("float64", True),
    "predicted_bernoulli_variance": ("float64", True),
    "group_size": ("int64", True),
    "tokens": ("int64", True),
    "seconds": ("float64", True),
}
HISTORY_COLUMNS = tuple(HISTORY_SCHEMA)

_PART = re.compile(r"^part-(\d{8})-(\d{8})\.(parquet|jsonl)$")


def history_rows(
    plan: Plan,
    read: Rewards,
    step: int,
    visits: Mapping[PromptId, int],
    reward_values: tuple[float, float],
    tokens: FloatArray | None,
    seconds: FloatArray | None,
) -> list[dict[str, Any]]:
    """One step's rows; ``visits`` counts each prompt's earlier groups, tokens and seconds are (B,)."""
    low, high = reward_values
    fresh: dict[PromptId, int] = {}
    rows: list[dict[str, Any]] = []
    for q, prompt_id in enumerate(plan.prompt_ids):
        visit = visits.get(prompt_id, 0) + fresh.get(prompt_id, 0)
        fresh[prompt_id] = fresh.get(prompt_id, 0) + 1
        n = int(read.counts[q])
        if n == 0:
            continue
        mean = float(read.means[q])
        rows.append(
            {
                "step": step,
                "prompt_id": str(prompt_id),
                "visit": visit,
                "successes": (mean - low) / (high - low) * n,
                "n_rollouts": n,
                "reward_mean": mean,
                "reward_var": float(read.variances[q]) if n > 1 else None,
                "predicted_mean": float(plan.prediction.mean[q]),
                "predicted_bernoulli_variance": float(plan.prediction.bernoulli_variance[q]),
                "group_size": int(plan.group_sizes[q]),
                "tokens": None if tokens is None else int(tokens[q]),
                "seconds": None if seconds is None else float(seconds[q]),
            }
        )
    return rows


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
    if set(row) != set(HISTORY_SCHEMA):
        raise InvalidInputError(f"a history row must have exactly the columns {HISTORY_COLUMNS}, but got {sorted(row)}")
    checked: dict[str, Any] = {}
    for name, (kind, nullable) in HISTORY_SCHEMA.items():
        value = row[name]
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
        raise MissingDependencyError("a parquet history needs pyarrow: pip install 'viprl[report]'") from error
    return pyarrow, pyarrow.parquet
