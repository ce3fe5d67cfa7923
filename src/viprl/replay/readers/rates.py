"""Reads success rates: from another model, an evaluation, rollouts, or a log taken together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from viprl._arrays import BoolArray, FloatArray
from viprl._tables import column_names
from viprl.errors import ConfigurationError
from viprl.replay.rates import MixedRolloutsError, Rates, rollouts_behind
from viprl.replay.readers.columns import resolve
from viprl.replay.readers.report import LogFormatError, ReadReport
from viprl.replay.readers.rollouts import binary_rewards
from viprl.replay.readers.rows import numbers_of
from viprl.replay.readers.visits import NAME_REWARDS, NO_ROLLOUTS, as_fractions

LAYOUTS = {
    "counts": ("prompt_id", "successes", "n_rollouts"),
    "visit rates": ("prompt_id", "success_rate", "n_rollouts"),
    "rates": ("prompt_id", "success_rate"),
    "rollouts": ("prompt_id", "reward"),
}


def read_rates(
    path: str | Path,
    report: ReadReport,
    *,
    columns: Mapping[str, str] | None = None,
    rollouts: int | None = None,
    success_at: float | None = None,
) -> Rates:
    """Rates from a table with prompt_id (or prompt) and successes and n_rollouts, success_rate, or a reward a rollout.

    The rows of a prompt are taken together, and a row a rollout is counted as such. Rates that lie on a grid k/n, as
    rates of n rollouts do, are taken as counts of n; others without ``rollouts`` as exact. Either is said.

    Args:
        rollouts: how many are behind each row's success_rate.
        success_at: rewards from this value on are successes.

    Raises:
        LogFormatError: columns missing, or a malformed row with ``on_error="stop"``.
        ConfigurationError: ``rollouts`` for a table with counts of its own.
    """
    path = Path(path)
    layout, names = resolve(path, column_names(path), columns, LAYOUTS)
    if rollouts is not None and layout != "rates":
        raise ConfigurationError(f"{path.name} has counts of its own, so `rollouts` must be None, but got {rollouts}")
    if rollouts is not None and rollouts < 1:
        raise ConfigurationError(f"rollouts >= 1 must hold, but got {rollouts}")
    ids: list[str] = []
    places: list[int] = []
    values: list[list[float]] = []
    wanted = [name for name in LAYOUTS[layout] if name != "prompt_id"]
    for line, prompt_id, found in numbers_of(path, report, names, wanted):
        ids.append(prompt_id)
        places.append(line)
        values.append([found[name] for name in wanted])
    table = dict(zip(wanted, np.array(values, dtype=np.float64).reshape(-1, len(wanted)).T, strict=True))
    k, n, reasons = _counts(layout, table, report, success_at)
    bad = np.zeros(len(ids), dtype=bool)
    for reason, mask in reasons.items():
        for row_number in np.flatnonzero(mask & ~bad):
            report.bad(path.name, places[row_number], reason, systematic=reason == NAME_REWARDS)
        bad |= mask
    empty = (n == 0) & ~bad
    report.drop(NO_ROLLOUTS, int(empty.sum()))
    report.finish()
    keep = ~bad & ~empty
    if not keep.any():
        raise LogFormatError(f"{path.name} must have at least one usable row, but has none")
    report.kept = int(keep.sum())
    k, n = k[keep], n[keep]
    behind = _behind(k, rollouts, report) if layout == "rates" else 1
    if behind is not None and layout == "rates":
        k, n = np.rint(k * behind), np.full(len(k), float(behind))
    return _gather([i for i, used in zip(ids, keep, strict=True) if used], k, n, behind is not None, report)


def _counts(
    layout: str, table: Mapping[str, FloatArray], report: ReadReport, success_at: float | None
) -> tuple[FloatArray, FloatArray, dict[str, BoolArray]]:
    """Successes and rollouts of each row (the rate itself and 1 for rates), and reason -> rows that break a rule."""
    if layout == "rollouts":
        reward = table["reward"]
        present = ~np.isnan(reward)
        k = np.zeros(len(reward))
        k[present] = binary_rewards(reward[present]) if success_at is None else reward[present] >= success_at
        return k, present.astype(np.float64), {"the reward is infinite": np.isinf(reward)}
    if layout == "rates":
        rate = as_fractions(table["success_rate"], report)
        return rate, np.ones(len(rate)), {"success_rate is not in [0, 1]": ~((rate >= 0) & (rate <= 1))}
    n = table["n_rollouts"]
    k = table["successes"] if layout == "counts" else as_fractions(table["success_rate"], report) * n
    k = np.where(np.abs(k - np.rint(k)) <= (1e-6 if layout == "counts" else np.minimum(0.005 * n, 0.25)), np.rint(k), k)
    inside = (n >= 0) & (k >= 0) & (k <= n)
    return (
        k,
        n,
        {
            "n_rollouts is not a whole number >= 0": ~(np.isfinite(n) & (n >= 0) & (n == np.floor(n))),
            NAME_REWARDS: inside & (k != np.rint(k)),
            "successes is not in [0, n_rollouts]": ~inside,
        },
    )


def _behind(rate: FloatArray, rollouts: int | None, report: ReadReport) -> int | None:
    """Rollouts behind each rate, and what to say of them."""
    if rollouts is not None:
        off = np.abs(rate - np.rint(rate * rollouts) / rollouts)
        if (off > 0.0051).any():
            raise LogFormatError(
                f"a rate of {rollouts} rollouts must be one of 0/{rollouts}, 1/{rollouts}, ..., but got "
                f"{rate[np.argmax(off)]:g}"
            )
        return rollouts
    try:
        behind = rollouts_behind(rate)
    except MixedRolloutsError:
        raise LogFormatError(
            "it must be known how many rollouts are behind the rates: they repeat themselves as those of few rollouts "
            "do, but no one number up to 64 explains them; give the columns successes and n_rollouts, or --rollouts N "
            "where each is of N (a large N where they are exact)"
        ) from None
    if behind is None:
        report.notice(
            "THE RATES ARE TAKEN AS EXACT: with few rollouts behind them they are not, and dead groups and gain come "
            "out far too large; if each is of N rollouts say so: --rollouts N"
        )
    else:
        report.notice(
            f"THE RATES LIE ON THE GRID k/{behind} and are taken as counts of {behind} rollouts"
            + ("" if behind > 1 else " (a row each)")
            + "; if another number is behind them say so: --rollouts N (a large N where they are exact)"
        )
    return behind


def _gather(ids: list[str], k: FloatArray, n: FloatArray, counted: bool, report: ReadReport) -> Rates:
    place: dict[str, int] = {}
    rows = np.array([place.setdefault(i, len(place)) for i in ids], dtype=np.int64)
    total = np.bincount(rows, n)
    if len(place) < len(rows):
        report.notice(f"{len(rows) - len(place)} rows repeat a prompt; its rows were taken together")
    if counted and np.median(total) < 2:
        raise LogFormatError(
            "most prompts must have two rollouts or more, since one says nothing of how their success rates differ, "
            f"but {int((total < 2).sum())} of {len(total)} have one"
        )
    if counted and np.median(total) < 4:
        report.notice(
            f"MOST PROMPTS HAVE {int(np.median(total))} ROLLOUTS: how their success rates differ, and so dead groups "
            "and gain, is hardly known"
        )
    rate = np.clip(np.bincount(rows, k) / total, 0, 1)
    return Rates(tuple(place), rate, total.astype(np.int64) if counted else None)
