"""The report's tables."""

from __future__ import annotations

import math
from html import escape

from viprl.evaluation.intervals import Interval
from viprl.replay.summary import RuleRow, Summary
from viprl.replay.wording import PREDICTOR_LABELS, label, limits_text, ratio_text, whole
from viprl.reports.tables import bars, interval_bar, table, table_row


def rules_table(summary: Summary, phase: str) -> str:
    """One row a rule, lowest variance first."""
    head = (
        "Rule",
        "Gradient variance (uniform = 1)",
        "Rollouts saved",
        "Gap closed",
        "Live groups",
        "Signal left out",
        "Rollouts used",
        "Against uniform",
    )
    return table(head, (_rule_row(row, head) for row in summary.rows[phase]), "rules")


def calibration_table(summary: Summary) -> str:
    """One row a predictor and kind of visit."""
    head = (
        "Predictor",
        "Visits",
        "Log loss",
        "Best constant",
        "Against constant",
        "Against discounted Beta",
        "Brier score",
        "Calibration error",
    )
    rows = []
    for row in summary.calibration:
        cells = (
            f"{escape(PREDICTOR_LABELS.get(row.predictor, row.predictor))}",
            f"{row.kind}, {row.visits:,}",
            f"{row.log_loss:.4f}",
            f"{row.constant_log_loss:.4f}",
            _difference(row.against_constant),
            "baseline" if row.against_beta is None else _difference(row.against_beta),
            f"{row.brier:.4f}",
            f"{row.calibration_error:.4f}",
        )
        rows.append(table_row(cells, head, row.kind))
    return table(head, rows, "calibration") if rows else ""


def cost_bars(summary: Summary) -> str:
    """Milliseconds a step for deciding, a bar a rule."""
    rows = sorted(summary.headline_rows, key=lambda row: -row.milliseconds)
    return bars([(label(row.rule), row.milliseconds, f"{row.milliseconds:.1f} ms") for row in rows])


def _rule_row(row: RuleRow, head: tuple[str, ...]) -> str:
    saved = row.rollouts_saved
    limits = "too few steps for an interval"
    saved_limits = ""
    if math.isfinite(row.ratio.high):
        limits = f"{ratio_text(row.ratio.low)} to {ratio_text(row.ratio.high)}"
        saved_limits = f" <small>{whole(saved.low)} to {whole(saved.high)}</small>"
    ratio = (
        f"{interval_bar(row.ratio.estimate, row.ratio.low, row.ratio.high)}"
        f'<span class="figure">{ratio_text(row.ratio.estimate)} <small>{limits}</small></span>'
    )
    uniform = row.rule == "uniform"
    if uniform:
        ratio = '<span class="figure">1</span>'
    cells = (
        escape(label(row.rule)),
        ratio,
        "0%" if uniform else f"{whole(saved.estimate)}%{saved_limits}",
        "" if row.gap_closed is None else f"{whole(row.gap_closed)}%",
        f"{whole(row.live)}%",
        f"{whole(row.missed)}%",
        f"{whole(row.rollouts)}%",
        _verdict(row),
    )
    return table_row(cells, head, "reference" if uniform else row.verdict.split()[0])


def _verdict(row: RuleRow) -> str:
    if row.rule == "uniform":
        return "reference"
    if row.verdict != "better":
        return row.verdict
    if row.against_best is None:
        return "better; lowest"
    return "better; not told apart from the lowest" if row.tied_with_best else "better"


def _difference(interval: Interval) -> str:
    css = "good" if interval.high < 0 else "bad" if interval.low > 0 else "even"
    return f'<span class="{css}">{interval.estimate:+.4f}</span> <small>{limits_text(interval)}</small>'


def _row(cells: tuple[str, ...], head: tuple[str, ...], css: str) -> str:
    first, *rest = cells
    body = "".join(
        f'<td data-label="{escape(name)}"><div>{cell}</div></td>' for cell, name in zip(rest, head[1:], strict=True)
    )
    return f'<tr class="{css}"><th scope="row">{first}</th>{body}</tr>'


def _table(head: tuple[str, ...], rows: str, css: str) -> str:
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    return f'<table class="{css}"><thead><tr>{columns}</tr></thead><tbody>{rows}</tbody></table>'
