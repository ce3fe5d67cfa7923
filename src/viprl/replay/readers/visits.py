"""Tables with a row a visit (viprl's own history, other people's) or a row a rollout, whatever the columns' names.

Needed of every row: step, prompt_id (or the prompt itself) and successes, n_rollouts; or, with a row a rollout, the
reward. ``success_rate`` may stand in for ``successes``. A history of real rewards has ``reward_mean`` and
``reward_var`` and no successes, or successes that are counted beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from viprl._arrays import BoolArray, FloatArray
from viprl._tables import column_names
from viprl.errors import InvalidInputError
from viprl.replay.log import VisitLog
from viprl.replay.readers.columns import resolve
from viprl.replay.readers.report import LogFormatError, ReadReport
from viprl.replay.readers.rollouts import RolloutTable
from viprl.replay.readers.rows import LARGEST, is_whole, numbers_of

LAYOUTS = {
    "visits": ("step", "prompt_id", "successes", "n_rollouts"),
    "visit rates": ("step", "prompt_id", "success_rate", "n_rollouts"),
    "reward moments": ("step", "prompt_id", "reward_mean", "reward_var", "n_rollouts"),
    "rollouts": ("step", "prompt_id", "reward"),
}
NUMBERS = ("step", "successes", "success_rate", "n_rollouts", "reward_mean", "reward_var")
NO_ROLLOUTS = "no rollout has a reward"
NAME_REWARDS = (
    "successes must be whole numbers in [0, n_rollouts], but this row's look like sums of real rewards; such a log "
    "needs the reward_mean and reward_var (unbiased) of each group, or a count of the rollouts that succeeded"
)


@dataclass
class _Visits:
    """Rows as they are read: where from, prompt_id, and a list for each of ``NUMBERS``."""

    places: list[tuple[str, int]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    values: list[list[float]] = field(default_factory=list)


def read_visits(
    paths: Sequence[Path],
    report: ReadReport,
    *,
    columns: Mapping[str, str] | None = None,
    success_at: float | None = None,
    all_prompts: Sequence[str] | None = None,
) -> VisitLog:
    """A log from rows of visits or rollouts.

    Args:
        paths: tables, all of one layout.
        report: filled.
        columns: canonical name -> column name in the file.
        success_at: of rollouts; see ``RolloutTable.visits``.
        all_prompts: see ``VisitLog.build``.
    """
    table, rollouts = _Visits(), RolloutTable()
    by_rollout = False
    for path in paths:
        try:
            found = column_names(path)
        except InvalidInputError:  # damaged; noted when its rows are read
            found = []
        layout, names = resolve(path, found, columns, LAYOUTS) if found else ("visits", {})
        by_rollout = by_rollout or layout == "rollouts"
        if layout == "rollouts":
            _read_rollouts(path, names, rollouts, report)
        else:
            _read_visits(path, names, table, report)
    if by_rollout:
        return rollouts.visits(report, success_at=success_at, all_prompts=all_prompts)
    return _log(table, report, all_prompts)


def _read_visits(path: Path, names: dict[str, str], table: _Visits, report: ReadReport) -> None:
    for line, prompt_id, found in numbers_of(path, report, names, [name for name in NUMBERS if name in names]):
        table.places.append((path.name, line))
        table.ids.append(prompt_id)
        table.values.append([found.get(name, np.nan) for name in NUMBERS])


def _read_rollouts(path: Path, names: dict[str, str], table: RolloutTable, report: ReadReport) -> None:
    for line, prompt_id, found in numbers_of(path, report, names, ("step", "reward"), optional="reward"):
        if not is_whole(found["step"]) or np.isinf(found["reward"]):
            report.bad(path.name, line, "step is not a whole number, or the reward is infinite")
        else:
            table.add_named(int(found["step"]), prompt_id, prompt_id, found["reward"])


def _log(table: _Visits, report: ReadReport, all_prompts: Sequence[str] | None) -> VisitLog:
    values = np.array(table.values, dtype=np.float64).reshape(-1, len(NUMBERS))
    step, successes, rate, n, mean, variance = values.T
    bad = np.zeros(len(n), dtype=bool)

    def refuse(mask: BoolArray, reason: str) -> None:
        for row in np.flatnonzero(mask & ~bad):
            report.bad(*table.places[row], reason, systematic=reason == NAME_REWARDS)
        bad[mask] = True

    refuse(~_whole(step), "step is not a whole number")
    refuse(~(_whole(n) & (n >= 0)), "n_rollouts is not a whole number >= 0")
    empty = (n == 0) & ~bad
    report.drop(NO_ROLLOUTS, int(empty.sum()))
    use = ~bad & ~empty
    k = np.where(np.isnan(successes), as_fractions(rate, report) * n, successes)
    k = _snapped(k, np.where(np.isnan(successes), 0.005 * n, 0.0))
    counts = np.isfinite(k) & (k >= 0) & (k <= n) & (k == np.rint(k))
    measured = np.isfinite(mean) & (np.isfinite(variance) | (n == 1))
    real = bool((use & ~counts & measured).sum() * 2 > (use & ~counts).sum()) if (use & ~counts).any() else False
    named = not real and not _binary(k, n, variance, use & counts)
    if real:
        k = np.full(len(k), np.nan)
        report.notice("the rewards are real numbers that name no success: visits are scored by the rewards' variance")
    else:
        told = (
            " (reward_mean alone does not do: real rewards need reward_var too)" if np.isfinite(mean[use]).any() else ""
        )
        refuse(use & np.isnan(k), f"successes is missing{told}")
        refuse(use & (k >= 0) & (k <= n) & (k != np.rint(k)), NAME_REWARDS)
        refuse(use & ~counts, "successes is not in [0, n_rollouts]")
    if named:
        report.notice("the rewards are more than the successes: visits are scored by the rewards' variance")
    if real or named:
        refuse(use & ~(measured & ~(variance < 0)), "reward_mean or reward_var is missing or out of range")
    report.finish()
    keep = ~bad & ~empty
    if not keep.any():
        raise LogFormatError(f"a log must have at least one visit with rollouts, but {report.rows} rows gave none")
    report.kept = int(keep.sum())
    ids = np.array(table.ids, dtype=object)[keep]
    moments = {"means": mean[keep], "variances": variance[keep]} if real or named else {}
    return VisitLog.build(step[keep], ids, k[keep], n[keep], all_prompts=all_prompts, **moments)


def as_fractions(rate: FloatArray, report: ReadReport) -> FloatArray:
    """Rates in [0, 1]; percentages are recognised by most of them lying above 1."""
    known = rate[np.isfinite(rate) & (rate != 0)]
    if 2 * (known > 1).sum() > len(known) and not ((known < 0) | (known > 100)).any():
        report.notice(f"success_rate reaches {known.max():g}: taken as percentages (0 to 100)")
        return rate / 100
    return rate


def _binary(k: FloatArray, n: FloatArray, variance: FloatArray, use: BoolArray) -> bool:
    """True where the recorded variances are those of rewards with two values, k of them the upper one."""
    rows = use & (n > 1) & np.isfinite(variance)
    expected = k[rows] * (n[rows] - k[rows]) / (n[rows] * (n[rows] - 1))
    if not len(expected) or not np.isfinite(variance[rows]).any():
        return True
    scale = variance[rows].sum() / expected.sum() if expected.sum() > 0 else 1.0
    return bool(np.allclose(variance[rows], scale * expected, rtol=1e-4, atol=1e-6 * max(scale, 1e-12)))


def _whole(values: FloatArray) -> BoolArray:
    return np.asarray(np.isfinite(values) & (np.abs(values) < LARGEST) & (values == np.floor(values)), dtype=bool)


def _snapped(k: FloatArray, within: FloatArray) -> FloatArray:
    """Counts that a division, or a rounded rate, left a hair beside a whole number, made whole."""
    near = np.rint(k)
    return np.where(np.abs(k - near) <= np.maximum(np.minimum(within, 0.25), 1e-6), near, k)
