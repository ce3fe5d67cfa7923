"""The report's charts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from viprl._arrays import FloatArray
from viprl.replay.engine.trace import BINS, KINDS
from viprl.replay.summary import Summary
from viprl.replay.wording import PREDICTOR_LABELS, label
from viprl.reports.charts import Axis, Bars, Chart, Dots, Line, Mark, percent
from viprl.reports.style import series
from viprl.reports.svg import legend, panels

MOST_LINES = 5
MOST_RULES = 12  # of the sheet
SHARES = Axis(0.0, 1.0, words=percent)


def highlighted(summary: Summary) -> list[str]:
    """Rules drawn in colour: VIP with the default predictor and with the Beta, then the best of the others."""
    names = [row.rule for row in summary.headline_rows if row.rule != "uniform"]
    first = [r for r in ("vip:calibrated", "vip:calibrated+guard", "vip:beta") if r in names]
    if "vip:calibrated" in first and "vip:calibrated+guard" in first:
        first.remove("vip:calibrated+guard")
    others = [r for r in names if r not in first and not r.startswith("vip:calibrated")]
    published = [r for r in others if not r.startswith("vip:")]
    return (first + published + [r for r in others if r not in published])[:MOST_LINES]


def ratio_chart(summary: Summary) -> Chart:
    """Variance ratio to uniform over the steps."""
    shown = highlighted(summary)
    values = np.concatenate([summary.series[r][:, 1] for r in shown] or [np.ones(1)])
    fine = values[np.isfinite(values)]
    low = min(float(fine.min(initial=1.0)), summary.best_ratio[summary.headline_phase], 0.95)
    high = max(float(np.quantile(fine, 0.99)) if len(fine) else 1.0, 1.05)
    y = (float(np.floor(low * 20 - 0.5) / 20), float(np.ceil(high * 20 + 0.5) / 20))
    numbers = next(iter(summary.series.values()))[:, 0]
    x = (float(numbers.min()), float(max(numbers.max(), numbers.min() + 1)))
    others = [line for rule, line in summary.series.items() if rule not in shown and rule != "uniform"]
    marks: list[Mark] = [Line(line[:, 0], line[:, 1], "other") for line in others]
    marks.append(Line(np.array(x), np.ones(2), "uniform"))
    marks += [
        Line(summary.series[rule][:, 0], summary.series[rule][:, 1], series(i))
        for i, rule in reversed(list(enumerate(shown)))
    ]
    names = [*_rule_names(shown), ("uniform", "Uniform (1.0)"), *([("other", "other rules")] if others else [])]
    return Chart(
        "Gradient variance relative to uniform, by step",
        Axis(*x, "training step"),
        Axis(*y, words=lambda value: f"{value:.2f}"),
        marks,
        names,
    )


def spending_chart(summary: Summary) -> Chart:
    """Mean rollouts a prompt by its success rate, with the best allocation and the share of prompts."""
    shown = [r for r in highlighted(summary) if summary.spending[r][:, 0].sum() > 0]
    table = summary.spending["uniform" if "uniform" in summary.spending else next(iter(summary.spending))]
    share = table[:, 0] / max(table[:, 0].sum(), 1)
    middles = (np.arange(BINS) + 0.5) / BINS
    lines = {r: _mean_rollouts(summary.spending[r], 1) for r in shown}
    best = _mean_rollouts(table, 2)
    mean = float(table[:, 1].sum() / max(table[:, 0].sum(), 1))
    top = float(np.nanmax([np.nanmax(v) for v in [*lines.values(), best, np.array([mean])]])) * 1.08
    marks: list[Mark] = [
        Bars(np.arange(BINS + 1) / BINS, share / share.max() * top * 0.5, "share"),
        Line(np.array([0.0, 1.0]), np.full(2, mean), "uniform"),
        *(Line(middles, lines[rule], series(i)) for i, rule in reversed(list(enumerate(shown)))),
        Line(middles, best, "best"),
    ]
    names = [
        *_rule_names(shown),
        ("best", f"best allocation ({summary.best_name})"),
        ("uniform", f"Uniform ({mean:.3g})"),
        ("share", f"share of prompts (tallest bar {percent(share.max())})"),
    ]
    x = replace(SHARES, title="success rate of the prompt")
    return Chart("Rollouts a prompt by its success rate", x, Axis(0.0, top), marks, names)


def reliability_charts(summary: Summary) -> str:
    """Observed against predicted success rate for first and for later visits, a panel each."""
    chosen = _predictors(summary)
    names = [(series(i), PREDICTOR_LABELS.get(p, p)) for i, p in enumerate(chosen)] + [
        ("uniform", "perfect calibration")
    ]
    drawn = []
    for index, kind in enumerate(KINDS):
        data = {p: summary.reliability[rule][index] for p, rule in chosen.items()}
        if not any(bins[:, 0].sum() > 0 for bins in data.values()):
            continue
        marks: list[Mark] = [Line(np.array([0.0, 1.0]), np.array([0.0, 1.0]), "uniform")]
        for place, bins in reversed(list(enumerate(data.values()))):
            used = bins[bins[:, 0] > 0]
            x, y = used[:, 1] / used[:, 0], used[:, 2] / used[:, 0]
            radius = 2.5 + 7 * np.sqrt(used[:, 0] / used[:, 0].sum())
            marks += [Line(x, y, f"thin {series(place)}"), Dots(x, y, radius, series(place))]
        x_axis = replace(SHARES, title="predicted success rate")
        drawn.append(
            (f"{kind.capitalize()} visits", Chart(f"Reliability, {kind} visits", x_axis, SHARES, marks, names))
        )
    if not drawn:
        return "<p>No rule of this replay predicts success rates.</p>"
    return legend(drawn[0][1]) + panels(drawn, legends=False)


def sheet(summary: Summary) -> list[Chart]:
    """The charts of report.png."""
    return [_intervals(summary), ratio_chart(summary), spending_chart(summary), _cost(summary)]


def _intervals(summary: Summary) -> Chart:
    """Each rule's ratio with its interval, on a logarithmic axis."""
    rows = summary.headline_rows[:MOST_RULES][::-1]
    marks: list[Mark] = [Line(np.zeros(2), np.array([-1.0, len(rows)]), "uniform")]
    ends = [0.0]
    for place, row in enumerate(rows):
        css = {"better": "good", "worse": "bad"}.get(row.verdict, "even")
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.log([row.ratio.low, row.ratio.estimate, row.ratio.high])
        if np.isfinite(values).all():
            marks.append(Line(values[[0, 2]], np.full(2, float(place)), css))
        marks.append(Dots(values[1:2], np.array([float(place)]), np.array([5.0]), css))
        ends += values[np.isfinite(values)].tolist()
    low, high = min(ends) - 0.05, max(ends) + 0.05
    places = [(float(np.log(m)), f"{m:g}") for m in (0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2, 3, 5, 10)]
    return Chart(
        f"Gradient variance, uniform = 1 ({summary.headline_phase}; 95% intervals)",
        Axis(low, high, places=[mark for mark in places if low <= mark[0] <= high]),
        Axis(-0.7, len(rows) - 0.3, places=[(float(i), label(row.rule)) for i, row in enumerate(rows)]),
        marks,
    )


def _cost(summary: Summary) -> Chart:
    rows = sorted(summary.headline_rows, key=lambda row: row.milliseconds)
    longest = max(row.milliseconds for row in rows) or 1.0
    marks = [Line(np.array([0.0, row.milliseconds]), np.full(2, float(i)), "thick c0") for i, row in enumerate(rows)]
    names = Axis(-0.7, len(rows) - 0.3, places=[(float(i), label(row.rule)) for i, row in enumerate(rows)])
    return Chart("Time a step for deciding, milliseconds", Axis(0.0, 1.05 * longest), names, marks)


def _rule_names(rules: list[str]) -> list[tuple[str, str]]:
    return [(series(i), label(rule)) for i, rule in enumerate(rules)]


def _mean_rollouts(table: FloatArray, column: int) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(table[:, 0] > 0, table[:, column] / table[:, 0], np.nan)


def _predictors(summary: Summary) -> dict[str, str]:
    """Up to four predictors and the rule each was scored in: the default, the Beta, then the best others."""
    order: dict[str, str] = {}
    for row in sorted(summary.calibration, key=lambda r: (r.kind != "later", r.log_loss)):
        order.setdefault(row.predictor, row.rule)
    first = [p for p in ("calibrated", "beta", "last_rate") if p in order]
    return {p: order[p] for p in (first + [p for p in order if p not in first])[:4]}
