"""From traces to the figures of the report.

Every figure is of one *phase* of the run; the headline phase is the last one ("later" visits, "epoch 2", ...).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from viprl import registry
from viprl._arrays import FloatArray
from viprl.errors import InvalidInputError
from viprl.evaluation.intervals import Interval
from viprl.replay.bootstrap import PairedBootstrap
from viprl.replay.calibration import CalibrationRow, calibration_table
from viprl.replay.engine.compare import Comparison
from viprl.replay.engine.trace import Trace
from viprl.replay.lineup import parse_rule
from viprl.replay.rules import Setting
from viprl.replay.saving import Saving
from viprl.replay.worlds import World

VERDICTS = ("better", "worse", "no difference shown")


@dataclass(frozen=True)
class RuleRow:
    """One rule in one phase.

    Attributes:
        rule: its name.
        ratio: gradient variance relative to uniform groups with as many rollouts; below 1 is better.
        verdict: against uniform; "better" or "worse" only where the ratio's interval excludes 1.
        gap_closed: share of the distance from uniform to the best allocation that is covered, in percent; may be
            negative. None where that distance is no larger than the ratio's interval is wide.
        rollouts_saved: percent of the rollouts that could be dropped while keeping uniform's variance.
        equivalent_group: rollouts a prompt that uniform groups would need for this variance.
        live: expected groups with both outcomes, per rollout, in percent of uniform's.
        left_out: percent of the prompts that get no gradient.
        missed: percent of the signal (sum of p(1-p)) that those prompts hold.
        rollouts: rollouts a step, percent of the budget.
        milliseconds: mean time a step for predicting, deciding and learning.
        against_best: difference of the ratio to the best rule's (this minus best); None for that rule.
        tied_with_best: the interval of that difference contains zero.
    """

    rule: str
    ratio: Interval
    verdict: str
    gap_closed: float | None
    rollouts_saved: Interval
    equivalent_group: Interval
    live: float
    left_out: float
    missed: float
    rollouts: float
    milliseconds: float
    against_best: Interval | None
    tied_with_best: bool


@dataclass
class Summary:
    """Everything that the report shows.

    Attributes:
        world: facts of the protocol.
        setting: estimator and bounds.
        phases: in order; the last is the headline's.
        best_name: what the best allocation is called: "oracle" or "hindsight".
        best_ratio: phase -> ratio of the best allocation.
        rows: phase -> rules, lowest ratio first.
        calibration: of the predictors.
        differences: of the headline phase: (rule, other) -> interval of the ratio's difference, for rules above in the
            table against every rule below.
        series: rule -> (T, 2) step number and ratio smoothed over neighbouring steps (mean over seeds).
        spending: rule -> (10, 3) prompts, rollouts, rollouts of the best, by success rate; headline phase.
        reliability: rule -> (2, 10, 3), see ``Trace``.
        seeds: used.
        interrupted, failures: of the comparison.
        notes: what the reader said.
        saving: what selecting prompts would have saved, or why that cannot be told; None where it was not asked.
    """

    world: dict[str, Any]
    setting: dict[str, Any]
    phases: list[str]
    best_name: str
    best_ratio: dict[str, float]
    rows: dict[str, list[RuleRow]]
    calibration: list[CalibrationRow]
    differences: dict[tuple[str, str], Interval]
    series: dict[str, FloatArray]
    spending: dict[str, FloatArray]
    reliability: dict[str, FloatArray]
    seeds: list[int]
    interrupted: bool = False
    failures: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    saving: Saving | str | None = None

    @property
    def headline_phase(self) -> str:
        """The last phase: the one that the headline judges."""
        return self.phases[-1]

    @property
    def headline_rows(self) -> list[RuleRow]:
        """The rules' rows of the headline's phase."""
        return self.rows[self.headline_phase]


def summarize(comparison: Comparison, world: World, setting: Setting, *, resamples: int = 2000) -> Summary:
    """Figures of all finished rules.

    Raises:
        InvalidInputError: no rule is finished.
    """
    rules, seeds = _complete(comparison)
    runs = {rule: [comparison.traces[rule, seed] for seed in seeds] for rule in rules}
    sample = runs[rules[0]][0]
    phases = _headline_last(sample, list(dict.fromkeys(sample.phases)))
    rows, best_ratio, differences = {}, {}, {}
    for phase in phases:
        table = _PhaseTable(runs, phase, setting, resamples)
        rows[phase], best_ratio[phase] = table.rows(), table.best_ratio
        if phase == phases[-1]:
            differences = table.differences()
    return Summary(
        world=world.describe(),
        setting={
            "estimator": setting.model.name,
            "min_group_size": setting.min_group_size,
            "max_group_size": setting.max_group_size,
        },
        phases=phases,
        best_name=world.best_name,
        best_ratio=best_ratio,
        rows=rows,
        calibration=calibration_table({r: t for r, t in runs.items() if _predicts(r)}, resamples=resamples),
        differences=differences,
        series={rule: _series(traces) for rule, traces in runs.items()},
        spending={rule: np.sum([t.spending[phases[-1]] for t in traces], axis=0) for rule, traces in runs.items()},
        reliability={
            rule: np.sum([t.reliability for t in traces], axis=0) for rule, traces in runs.items() if _predicts(rule)
        },
        seeds=seeds,
        interrupted=comparison.interrupted,
        failures=dict(comparison.failures),
    )


class _PhaseTable:
    """The rows of one phase, with one set of resamples for all of them."""

    def __init__(self, runs: dict[str, list[Trace]], phase: str, setting: Setting, resamples: int) -> None:
        self.runs, self.phase, self.setting = runs, phase, setting
        some = next(iter(runs.values()))
        self.bootstrap = PairedBootstrap([int(t.in_phase(phase).sum()) for t in some], resamples=resamples)
        self.ratios = {rule: self._ratio(rule, "variance", "uniform") for rule in runs}
        best = self._ratio("uniform" if "uniform" in runs else next(iter(runs)), "best", "best_uniform")
        self.best_ratio, best_interval = best[0], self.bootstrap.interval(*best)
        self.best_noise = best_interval.high - best_interval.low
        self.order = sorted(runs, key=lambda rule: (not np.isfinite(self.ratios[rule][0]), self.ratios[rule][0]))

    def _columns(self, rule: str, name: str) -> list[FloatArray]:
        return [trace.column(name, self.phase) for trace in self.runs[rule]]

    def _ratio(self, rule: str, above: str, below: str) -> tuple[float, FloatArray]:
        return self.bootstrap.ratio(self._columns(rule, above), self._columns(rule, below))

    def _difference(self, rule: str, other: str) -> Interval:
        (a, a_star), (b, b_star) = self.ratios[rule], self.ratios[other]
        return self.bootstrap.interval(a - b, a_star - b_star)

    def differences(self) -> dict[tuple[str, str], Interval]:
        return {
            (rule, other): self._difference(rule, other)
            for i, rule in enumerate(self.order)
            for other in self.order[i + 1 :]
        }

    def rows(self) -> list[RuleRow]:
        return [self._row(rule) for rule in self.order]

    def _row(self, rule: str) -> RuleRow:
        ratio = self.bootstrap.interval(*self.ratios[rule])
        best = self.order[0]
        against = None if rule == best else self._difference(rule, best)
        total = {
            name: float(np.sum([c.sum() for c in self._columns(rule, name)]))
            for name in ("live", "rollouts", "uniform_live", "budget", "prompts", "left_out", "missed", "signal")
        }
        group = total["budget"] / total["prompts"]
        equivalent = [
            equivalent_group_size(self.setting, value, group) for value in (ratio.estimate, ratio.high, ratio.low)
        ]
        saved = [100 * (1 - group / value) if value > 0 else np.nan for value in equivalent]
        # else the share would be one of noise
        told = 1 - self.best_ratio > max(ratio.high - ratio.low, self.best_noise)
        gap = 100 * (1 - ratio.estimate) / (1 - self.best_ratio) if told else None
        seconds = np.concatenate(self._columns(rule, "seconds"))
        return RuleRow(
            rule=rule,
            ratio=ratio,
            verdict=verdict(ratio, 1.0),
            gap_closed=gap,
            rollouts_saved=Interval(*saved),
            equivalent_group=Interval(*equivalent),
            live=100 * (total["live"] / total["rollouts"]) / (total["uniform_live"] / total["budget"]),
            left_out=100 * total["left_out"] / total["prompts"],
            missed=100 * total["missed"] / total["signal"] if total["signal"] > 0 else 0.0,
            rollouts=100 * total["rollouts"] / total["budget"],
            milliseconds=1000 * float(seconds.mean()),
            against_best=against,
            tied_with_best=against is None or not against.excludes(0.0),
        )


def verdict(interval: Interval, reference: float) -> str:
    """ "better" (lower) or "worse" than the reference only where the interval excludes it."""
    if interval.high < reference:
        return VERDICTS[0]
    return VERDICTS[1] if interval.low > reference else VERDICTS[2]


def equivalent_group_size(setting: Setting, ratio: float, group: float) -> float:
    """Rollouts a prompt at which uniform groups have ``ratio`` times the variance they have at ``group``.

    Solves f(n) = ratio * f(group); for RLOO n = 1 + (group - 1) / ratio.
    """
    if not np.isfinite(ratio):
        return float("nan") if np.isnan(ratio) else (1.0 if ratio > 0 else float("inf"))
    if ratio <= 0:
        return float("inf")
    factor = setting.model.factor
    target = ratio * float(factor(np.array([group]))[0])
    low, high = 2.0, 4.0
    if float(factor(np.array([low]))[0]) < target:
        return low  # Dr. GRPO's factor is largest at two rollouts
    while float(factor(np.array([high]))[0]) > target:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if float(factor(np.array([middle]))[0]) > target else (low, middle)
    return (low + high) / 2


def _complete(comparison: Comparison) -> tuple[list[str], list[int]]:
    """Rules and seeds such that every rule has every seed; most rules first, then most seeds."""
    done = {rule: [s for s in comparison.seeds if (rule, s) in comparison.traces] for rule in comparison.rules}
    rules = [rule for rule, seeds in done.items() if seeds]
    if not rules:
        raise InvalidInputError(
            "at least one rule must be finished for a report, but none is"
            + "".join(f"; {rule}: {why}" for rule, why in comparison.failures.items())
        )
    common = [s for s in comparison.seeds if all(s in done[rule] for rule in rules)]
    if common:
        return rules, common
    most = max(comparison.seeds, key=lambda s: sum(s in done[rule] for rule in rules))
    return [rule for rule in rules if most in done[rule]], [most]


def _headline_last(trace: Trace, phases: Sequence[str]) -> list[str]:
    """Phases with something to score, in order."""
    kept = [p for p in phases if trace.column("best_uniform", p).sum() > 0]
    if not kept:
        raise InvalidInputError("no group of the run has both outcomes, so there is no variance to compare")
    return kept


def _series(traces: list[Trace], window: int = 0) -> FloatArray:
    """(T, 2) step number and ratio over a moving window of about a twentieth of the run."""
    numbers = traces[0].column("number")
    width = window or max(1, len(numbers) // 20)
    kernel = np.ones(width)
    ratios = []
    for trace in traces:
        above = np.convolve(trace.column("variance"), kernel, mode="same")
        below = np.convolve(trace.column("uniform"), kernel, mode="same")
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios.append(np.where(below > 0, above / below, np.nan))
    return np.column_stack([numbers, np.mean(ratios, axis=0)])


def _predicts(rule: str) -> bool:
    """The rule predicts success probabilities."""
    predictor = parse_rule(rule).predictor
    return predictor is not None and registry.find("predictor", predictor).rewards == "binary"
