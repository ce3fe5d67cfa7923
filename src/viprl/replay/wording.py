"""The findings in words: the headline and the table that a terminal shows."""

from __future__ import annotations

import math

from viprl.evaluation.intervals import Interval
from viprl.replay.summary import RuleRow, Summary

LABELS = {
    "vip": "VIP",
    "relaxed": "VIP, relaxed and rounded",
    "uniform": "Uniform",
    "inverse_accuracy": "Inverse accuracy",
    "inverse_variance": "Inverse variance",
    "knapsack_rl": "Knapsack-RL",
    "gvm": "GVM",
    "dynamo": "DynaMO",
    "mopps": "MoPPS selection",
    "greso": "GRESO skipping",
    "dapo": "DAPO oversampling",
    "vigor": "VIGOR rounds",
    "pilot_commit": "Pilot-Commit",
}
PREDICTOR_LABELS = {
    "calibrated": "calibrated",
    "beta": "discounted Beta",
    "last_rate": "last-rate",
    "global_mean": "global-mean",
    "gp": "paper's GP",
    "moving_average": "moving-average",
    "ridge": "ridge",
    "reward_variance": "reward-variance",
}
MOST_MISSED = 1.0  # percent of the signal that a rule may leave out and still be called an allocation of all prompts


def label(rule: str) -> str:
    """A rule's name in a table or legend."""
    return _name(rule, ", {}", ", guarded")


def long_label(rule: str) -> str:
    """A rule's name in a sentence."""
    return _name(rule, " with the {} predictor", " and guard")


def _name(rule: str, predictor_form: str, guard_form: str) -> str:
    body, _, guard = rule.partition("+")
    policy, _, predictor = body.partition(":")
    text = LABELS.get(policy, policy)
    if predictor:
        text += predictor_form.format(PREDICTOR_LABELS.get(predictor, predictor))
    return text + guard_form if guard else text


def headline(summary: Summary) -> str:
    """One sentence: what allocation would have saved on this run."""
    rows = [row for row in summary.headline_rows if row.rule != "uniform"]
    where = _where(summary.headline_phase)
    if not rows:
        return "Only uniform allocation was replayed, so there is nothing to compare."
    best = rows[0]
    if best.verdict != "better":
        return (
            f"No rule is shown to need fewer rollouts than uniform groups {where}: the best, {long_label(best.rule)}, "
            f"has {_ratio(best.ratio)} of uniform's gradient variance."
        )
    ours = next((row for row in rows if row.rule.startswith("vip:calibrated") and row.verdict == "better"), best)
    if ours is not best and not ours.tied_with_best:
        ours = best
    base = ours.rule.partition("+")[0]  # a rule and its guarded twin are not worth telling apart
    tied = [
        long_label(row.rule)
        for row in rows
        if row.tied_with_best and row.verdict == "better" and row.rule.partition("+")[0] != base
    ]
    text = (
        f"{long_label(ours.rule)} reaches uniform's gradient variance with {ours.rollouts_saved.estimate:.0f}% fewer "
        f"rollouts {where} (95% interval {ours.rollouts_saved.low:.0f} to {ours.rollouts_saved.high:.0f}%)."
    )
    if tied:
        text += f" Not told apart from it: {'; '.join(tied)}."
    return text


def _where(phase: str) -> str:
    known = {"later": "on prompts it has met before", "first visits": "on first visits"}
    return known.get(phase, f"in {phase}" if phase.startswith("epoch") else f"in the phase “{phase}”")


def ratio_text(value: float) -> str:
    """A ratio to three digits, or four where three would hide that it is not 1."""
    if not math.isfinite(value):
        return "?"
    text = f"{value:.3f}"
    return f"{value:.4f}" if text == "1.000" and value != 1.0 else text


def text_table(summary: Summary, phase: str | None = None) -> list[str]:
    """Lines of a fixed-width table of one phase."""
    phase = phase or summary.headline_phase
    header = ("rule", "variance vs uniform", "rollouts saved", "gap closed", "live", "missed", "ms/step", "verdict")
    body = [_cells(row) for row in summary.rows[phase]]
    widths = [max(len(line[i]) for line in [header, *body]) for i in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in [header, *body]
    ]
    best = summary.best_ratio[phase]
    return [f"{phase}: {summary.best_name} {best:.4f}", *(line.rstrip() for line in lines)]


def calibration_lines(summary: Summary) -> list[str]:
    """Lines of the calibration table."""
    lines = []
    for row in summary.calibration:
        beta = "" if row.against_beta is None else f", vs discounted Beta {_signed(row.against_beta)}"
        name = PREDICTOR_LABELS.get(row.predictor, row.predictor)
        lines.append(
            f"{row.kind:5s} visits  {name:15s} log loss {row.log_loss:.4f}"
            f" (constant {row.constant_log_loss:.4f}{beta}), Brier {row.brier:.4f}, calibration error "
            f"{row.calibration_error:.4f}, mean error {row.absolute_error:.4f}"
        )
    return lines


def _cells(row: RuleRow) -> tuple[str, ...]:
    verdict = row.verdict + (", tied best" if row.tied_with_best and row.verdict == "better" else "")
    return (
        row.rule,
        f"{row.ratio.estimate:.4f} [{ratio_text(row.ratio.low)}, {ratio_text(row.ratio.high)}]",
        f"{whole(row.rollouts_saved.estimate)}%",
        "-" if row.gap_closed is None else f"{whole(row.gap_closed)}%",
        f"{whole(row.live)}%",
        f"{whole(row.missed)}%",
        f"{row.milliseconds:.1f}",
        "reference" if row.rule == "uniform" else verdict,
    )


def whole(value: float) -> str:
    """A whole number as people write it (no minus zero); a dash where there is none."""
    return f"{round(value):,d}" if math.isfinite(value) else "–"


def limits_text(interval: Interval, form: str = "+.4f") -> str:
    """The interval's limits, or why there are none."""
    if not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return "too few steps for an interval"
    return f"{interval.low:{form}} to {interval.high:{form}}"


def _ratio(interval: Interval) -> str:
    if not math.isfinite(interval.high):
        return f"{100 * interval.estimate:.0f}% (too few steps for an interval)"
    return f"{100 * interval.estimate:.0f}% (95% interval {100 * interval.low:.0f} to {100 * interval.high:.0f}%)"


def _signed(interval: Interval) -> str:
    return f"{interval.estimate:+.4f} [{limits_text(interval)}]"
