"""The report's charts."""

from __future__ import annotations

import numpy as np

from viprl._arrays import FloatArray
from viprl.replay.engine.trace import BINS, KINDS
from viprl.replay.summary import Summary
from viprl.replay.wording import PREDICTOR_LABELS, label
from viprl.reports.svg import NARROW, WIDE, Axes, Key, figure, legend, number, ticks

MOST_LINES = 5


def highlighted(summary: Summary) -> list[str]:
    """Rules drawn in colour: VIP with the default predictor and with the Beta, then the best of the others."""
    names = [row.rule for row in summary.headline_rows if row.rule != "uniform"]
    first = [r for r in ("vip:calibrated", "vip:calibrated+guard", "vip:beta") if r in names]
    if "vip:calibrated" in first and "vip:calibrated+guard" in first:
        first.remove("vip:calibrated+guard")
    others = [r for r in names if r not in first and not r.startswith("vip:calibrated")]
    published = [r for r in others if not r.startswith("vip:")]
    return (first + published + [r for r in others if r not in published])[:MOST_LINES]


def ratio_chart(summary: Summary) -> str:
    """Variance ratio to uniform over the steps."""
    shown = highlighted(summary)
    values = np.concatenate([summary.series[r][:, 1] for r in shown] or [np.ones(1)])
    fine = values[np.isfinite(values)]
    low = min(float(fine.min(initial=1.0)), summary.best_ratio[summary.headline_phase], 0.95)
    high = max(float(np.quantile(fine, 0.99)) if len(fine) else 1.0, 1.05)
    y = (np.floor(low * 20 - 0.5) / 20, np.ceil(high * 20 + 0.5) / 20)
    numbers = next(iter(summary.series.values()))[:, 0]
    x = (float(numbers.min()), float(max(numbers.max(), numbers.min() + 1)))

    def draw(width: int, height: int) -> str:
        axes = Axes(width, height, x, y, label="Gradient variance relative to uniform, by step")
        most = 8 if width == WIDE else 4
        axes.grid([(t, number(t)) for t in ticks(*x, most)], [(t, f"{t:.2f}") for t in ticks(*y, 6)])
        for rule, series in summary.series.items():
            if rule not in shown and rule != "uniform":
                axes.line(series[:, 0], series[:, 1], "line other")
        axes.line(np.array(x), np.ones(2), "line uniform")
        for index, rule in reversed(list(enumerate(shown))):
            axes.line(summary.series[rule][:, 0], summary.series[rule][:, 1], f"line c{index}")
        axes.x_title("training step")
        return axes.render()

    keys = [Key(f"c{i}", label(rule)) for i, rule in enumerate(shown)] + [Key("uniform", "Uniform (1.0)")]
    if any(r not in shown and r != "uniform" for r in summary.series):
        keys.append(Key("other", "other rules"))
    return figure(legend(keys), draw(WIDE, 320), draw(NARROW, 280))


def spending_chart(summary: Summary) -> str:
    """Mean rollouts a prompt by its success rate, with the best allocation and the share of prompts."""
    shown = [r for r in highlighted(summary) if summary.spending[r][:, 0].sum() > 0]
    table = summary.spending["uniform" if "uniform" in summary.spending else next(iter(summary.spending))]
    share = table[:, 0] / max(table[:, 0].sum(), 1)
    middles = (np.arange(BINS) + 0.5) / BINS
    lines = {r: _mean_rollouts(summary.spending[r], 1) for r in shown}
    best = _mean_rollouts(table, 2)
    mean = float(table[:, 1].sum() / max(table[:, 0].sum(), 1))
    top = float(np.nanmax([np.nanmax(v) for v in [*lines.values(), best, np.array([mean])]])) * 1.08
    y = (0.0, top)

    def draw(width: int, height: int) -> str:
        axes = Axes(width, height, (0.0, 1.0), y, label="Rollouts a prompt by its success rate")
        marks = ticks(0, 1, 10 if width == WIDE else 5)
        axes.grid([(t, f"{100 * t:.0f}%") for t in marks], [(t, number(t)) for t in ticks(*y, 6)])
        axes.bars(np.arange(BINS + 1) / BINS, share / share.max() * top * 0.5, "share")
        axes.line(np.array([0.0, 1.0]), np.full(2, mean), "line uniform")
        for index, rule in reversed(list(enumerate(shown))):
            axes.line(middles, lines[rule], f"line c{index}")
        axes.line(middles, best, "line best")
        axes.x_title("success rate of the prompt")
        return axes.render()

    keys = [Key(f"c{i}", label(rule)) for i, rule in enumerate(shown)]
    keys += [Key("best", f"best allocation ({summary.best_name})"), Key("uniform", f"Uniform ({mean:.3g})")]
    keys.append(Key("share", f"share of prompts (tallest bar {100 * share.max():.0f}%)"))
    return figure(legend(keys), draw(WIDE, 320), draw(NARROW, 280))


def reliability_charts(summary: Summary) -> str:
    """Observed against predicted success rate for first and for later visits, a panel each."""
    chosen = _predictors(summary)
    panels = []
    for index, kind in enumerate(KINDS):
        data = {p: summary.reliability[rule][index] for p, rule in chosen.items()}
        if not any(bins[:, 0].sum() > 0 for bins in data.values()):
            continue
        axes = Axes(NARROW, 320, (0.0, 1.0), (0.0, 1.0), label=f"Reliability, {kind} visits")
        marks = [(t, f"{100 * t:.0f}%") for t in ticks(0, 1, 5)]
        axes.grid(marks, marks)
        axes.line(np.array([0.0, 1.0]), np.array([0.0, 1.0]), "line uniform")
        for place, bins in reversed(list(enumerate(data.values()))):
            used = bins[bins[:, 0] > 0]
            x, y = used[:, 1] / used[:, 0], used[:, 2] / used[:, 0]
            radius = 2.5 + 7 * np.sqrt(used[:, 0] / used[:, 0].sum())
            axes.line(x, y, f"line thin c{place}")
            axes.dots(x, y, radius, f"dot c{place}")
        axes.x_title("predicted success rate")
        panels.append(f"<figure><figcaption>{kind.capitalize()} visits</figcaption>{axes.render()}</figure>")
    if not panels:
        return "<p>No rule of this replay predicts success rates.</p>"
    keys = [Key(f"c{i}", PREDICTOR_LABELS.get(p, p)) for i, p in enumerate(chosen)]
    keys.append(Key("uniform", "perfect calibration"))
    return f'{legend(keys)}<div class="pair">{"".join(panels)}</div>'


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
