"""Success rates of prompts at one point in time: from another model, an evaluation, or a log taken together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viprl.errors import InvalidInputError
from viprl.replay.log import VisitLog
from viprl.replay.readers.report import LogFormatError, ReadReport
from viprl.replay.worlds.pool import rates_to_probabilities


@dataclass(frozen=True)
class Rates:
    """Rates of N prompts.

    Attributes:
        prompt_ids: (N,).
        rate: (N,) observed success rates.
        rollouts: (N,) rollouts behind each, or None where the file gives rates alone (then taken as exact).
    """

    prompt_ids: tuple[str, ...]
    rate: NDArray[np.float64]
    rollouts: NDArray[np.int64] | None

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """(N,) success probabilities for a simulation: (k + 1/4) / (n + 1/2), or the rates themselves."""
        if self.rollouts is None:
            return self.rate
        return rates_to_probabilities(self.rate * self.rollouts, self.rollouts)


def read_rates(path: str | Path, report: ReadReport, *, columns: Mapping[str, str] | None = None) -> Rates:
    """Rates from a parquet, JSONL or CSV file with prompt_id and either successes and n_rollouts, or success_rate.

    A log with steps is taken together: each prompt's successes over all its visits.

    Raises:
        LogFormatError: columns missing, or a malformed row with ``on_error="stop"``.
    """
    path = Path(path)
    report.files += 1
    frame = _frame(path, report)
    names = {n: (columns or {}).get(n, n) for n in ("prompt_id", "successes", "n_rollouts", "success_rate")}
    counted = names["successes"] in frame and names["n_rollouts"] in frame
    if names["prompt_id"] not in frame or not (counted or names["success_rate"] in frame):
        raise LogFormatError(
            f"{path.name} must have prompt_id and either successes and n_rollouts, or success_rate, but it has "
            f"{sorted(map(str, frame.columns))}; other names are mapped by --columns"
        )
    import pandas as pd

    def numbers(name: str) -> NDArray[np.float64]:
        return pd.to_numeric(frame[names[name]], errors="coerce").to_numpy(np.float64, na_value=np.nan)

    ids = frame[names["prompt_id"]]
    absent = ids.isna().to_numpy()
    lines = frame.index.to_numpy() + 1
    if counted:
        k, n = numbers("successes"), numbers("n_rollouts")
        bad = ~(np.isfinite(k) & np.isfinite(n) & (n >= 0) & (k >= 0) & (k <= n + 1e-9))
        reason = "0 <= successes <= n_rollouts does not hold"
    else:
        k, n = numbers("success_rate"), np.ones(len(frame))
        bad = ~(np.isfinite(k) & (k >= 0) & (k <= 1))
        reason = "success_rate is not in [0, 1]"
    for row in np.flatnonzero(absent | bad):
        report.bad(path.name, int(lines[row]), "prompt_id is missing" if absent[row] else reason)
    empty = (n == 0) & ~(absent | bad)
    report.drop("no rollout has a reward", int(empty.sum()))
    keep = ~(absent | bad | empty)
    report.kept = int(keep.sum())
    if not keep.any():
        raise LogFormatError(f"{path.name} has no usable row")
    return _gather(ids[keep], k[keep], n[keep], counted, report)


def rates_of_log(log: VisitLog) -> Rates:
    """Each prompt's rate over all its visits; prompts without a visit are left out."""
    k, n = log.pooled()
    seen = n > 0
    ids = tuple(i for i, s in zip(log.prompt_ids, seen, strict=True) if s)
    return Rates(ids, k[seen] / n[seen], n[seen])


def _gather(ids: Any, k: NDArray[np.float64], n: NDArray[np.float64], counted: bool, report: ReadReport) -> Rates:
    import pandas as pd

    codes, uniques = pd.factorize(ids.astype(str))
    names = tuple(str(u) for u in uniques)
    total = np.bincount(codes, n)
    rate = np.bincount(codes, k) / total
    if len(names) < len(codes):
        report.notice(f"{len(codes) - len(names)} rows repeat a prompt; its rows were taken together")
    return Rates(names, np.clip(rate, 0, 1), total.astype(np.int64) if counted else None)


def _frame(path: Path, report: ReadReport) -> Any:
    import pandas as pd

    from viprl.replay.readers.lines import json_lines
    from viprl.replay.readers.visits import parquet_frame

    if path.suffix == ".parquet":
        frame = parquet_frame(path, report)
        if frame is None:
            raise LogFormatError(f"{path.name} is no readable parquet file")
        report.rows += len(frame)
        return frame.reset_index(drop=True)
    if path.suffix in (".csv", ".tsv"):
        try:
            frame = pd.read_csv(path, sep="\t" if path.suffix == ".tsv" else ",", dtype=str, encoding="utf-8-sig")
        except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
            raise LogFormatError(f"{path.name} is no readable CSV: {error}") from error
        report.rows += len(frame)
        frame.index = frame.index + 1  # the header is line 1
        return frame
    rows = list(json_lines(path, report))
    if not rows:
        raise InvalidInputError(f"{path.name} has no rows")
    return pd.DataFrame([row for _, row in rows], index=[line - 1 for line, _ in rows])
