"""How good the predictions were: log loss, Brier score and calibration error, each against two simple predictors.

The *constant* is the best one in hindsight: the mean success rate of the very visits that are scored. No predictor
could have known it, so beating it means something. The discounted Beta knows a prompt's own history and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from viprl._arrays import FloatArray
from viprl.evaluation.intervals import Interval
from viprl.replay.bootstrap import PairedBootstrap
from viprl.replay.engine.trace import CLIP, KINDS, Trace, cross_entropy
from viprl.replay.lineup import parse_rule

BASELINE = "vip:beta"


@dataclass(frozen=True)
class CalibrationRow:
    """One predictor on first or on later visits.

    Attributes:
        predictor, rule: the predictor, and the rule whose run it is scored in.
        kind: "first" or "later".
        visits: scored.
        log_loss, brier: per rollout; lower is better.
        calibration_error: mean |prediction - rate| over ten equal-width bins, weighted by visits.
        absolute_error: mean |prediction - observed rate (or known probability)|.
        constant_log_loss, constant_brier: of the best constant.
        against_constant, against_beta: interval of the difference in log loss (this minus the other); below zero is
            better. None against itself, or where the discounted Beta was not run.
    """

    predictor: str
    rule: str
    kind: str
    visits: int
    log_loss: float
    brier: float
    calibration_error: float
    absolute_error: float
    constant_log_loss: float
    constant_brier: float
    against_constant: Interval
    against_beta: Interval | None


def calibration_table(runs: dict[str, list[Trace]], *, resamples: int = 2000) -> list[CalibrationRow]:
    """A row for each predictor (in its VIP run, where there is one) and kind of visit, lowest log loss first."""
    chosen: dict[str, str] = {}
    for rule in sorted(runs, key=lambda r: (parse_rule(r).policy != "vip", parse_rule(r).guarded)):
        chosen.setdefault(str(parse_rule(rule).predictor), rule)
    rows: list[CalibrationRow] = []
    for kind in KINDS:
        some = next(iter(runs.values()), None)
        if some is None or not all(trace.loss(kind, "count").sum() > 0 for trace in some):
            continue
        table = [_row(runs, predictor, rule, kind, resamples) for predictor, rule in chosen.items()]
        rows += sorted(table, key=lambda row: row.log_loss)
    return rows


def _row(runs: dict[str, list[Trace]], predictor: str, rule: str, kind: str, resamples: int) -> CalibrationRow:
    traces = runs[rule]
    counts = [t.loss(kind, "count") for t in traces]
    losses = [t.loss(kind, "log_loss") for t in traces]
    bootstrap = PairedBootstrap([len(c) for c in counts], resamples=resamples)
    own, own_star = bootstrap.ratio(losses, counts)
    rates = [t.loss(kind, "rate") for t in traces]
    mean = float(sum(r.sum() for r in rates) / sum(c.sum() for c in counts))
    constant = [_constant_losses(r, c, mean) for r, c in zip(rates, counts, strict=True)]
    flat, flat_star = bootstrap.ratio(constant, counts)
    beta = None
    if BASELINE in runs and rule != BASELINE:
        other = runs[BASELINE]
        value, star = bootstrap.ratio([t.loss(kind, "log_loss") for t in other], [t.loss(kind, "count") for t in other])
        beta = bootstrap.interval(own - value, own_star - star)
    bins = np.sum([t.reliability[KINDS.index(kind)] for t in traces], axis=0)
    visits = float(sum(c.sum() for c in counts))
    brier_constant = sum((r * (1 - 2 * mean) + c * mean**2).sum() for r, c in zip(rates, counts, strict=True))
    return CalibrationRow(
        predictor=predictor,
        rule=rule,
        kind=kind,
        visits=int(visits),
        log_loss=own,
        brier=float(sum(t.loss(kind, "brier").sum() for t in traces) / visits),
        calibration_error=float(np.abs(bins[:, 1] - bins[:, 2]).sum() / visits),
        absolute_error=float(sum(t.loss(kind, "absolute").sum() for t in traces) / visits),
        constant_log_loss=flat,
        constant_brier=float(brier_constant / visits),
        against_constant=bootstrap.interval(own - flat, own_star - flat_star),
        against_beta=beta,
    )


def _constant_losses(rates: FloatArray, counts: FloatArray, mean: float) -> FloatArray:
    """(T,) sums of the log loss of one constant; the loss is linear in the rate."""
    p = np.clip(np.array([mean]), CLIP, 1 - CLIP)
    zero, one = cross_entropy(p, np.zeros(1))[0], cross_entropy(p, np.ones(1))[0]
    result: FloatArray = counts * zero + rates * (one - zero)
    return result
