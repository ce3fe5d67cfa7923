"""The report's figures as plain data, for report.json."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from viprl.evaluation.intervals import Interval
from viprl.replay.saving import saving_data
from viprl.replay.summary import Summary
from viprl.replay.wording import headline

FORMAT = 1


def report_data(summary: Summary) -> dict[str, Any]:
    """Everything in the report, JSON-ready; numbers that do not exist are null."""
    plain = {
        "format": FORMAT,
        "headline": headline(summary),
        "world": summary.world,
        "setting": summary.setting,
        "seeds": summary.seeds,
        "interrupted": summary.interrupted,
        "failures": summary.failures,
        "notes": summary.notes,
        "phases": summary.phases,
        "headline_phase": summary.headline_phase,
        "best_allocation": {"name": summary.best_name, "ratio": summary.best_ratio},
        "rules": {phase: [dataclasses.asdict(row) for row in rows] for phase, rows in summary.rows.items()},
        "calibration": [dataclasses.asdict(row) for row in summary.calibration],
        "differences": [
            {"rule": a, "other": b, "difference": interval, "shown": interval.excludes(0.0)}
            for (a, b), interval in summary.differences.items()
        ],
        "series": summary.series,
        "spending": summary.spending,
        "reliability": summary.reliability,
        "selection": saving_data(summary.saving),
    }
    result: dict[str, Any] = _plain(plain)
    return result


def _plain(value: Any) -> Any:
    if isinstance(value, Interval):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
