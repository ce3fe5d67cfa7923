"""The report's charts, from the runs' tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from viprl._arrays import FloatArray
from viprl.reports.charts import Axis, Bars, Cells, Chart, Dots, Line, Mark, Spans, percent
from viprl.reports.style import series
from viprl.training.report.collect import RunData, histories_of, policies_of, sample_variance, variance_ratios

ROWS = 10  # of the heat map: a tenth of success rate each
UNIT = Axis(0.0, 1.0, words=percent)
DIAGONAL = np.array([0.0, 1.0])


@dataclass(frozen=True)
class Section:
    """Charts that answer one question.

    Attributes:
        name: of the PNG file.
        title, caption: what the page says; the caption says how to read it.
        panels: (title, chart), side by side.
    """

    name: str
    title: str
    caption: str
    panels: list[tuple[str, Chart]]


def learning(runs: Sequence[RunData]) -> list[tuple[str, Chart]]:
    """Held-out success (sampled, greedy) and success in training, by step; faint lines are seeds, strong their mean."""
    end = float(max(data.steps["step"].max() for data in runs))
    steps = Axis(0.0, end, "step")
    found = []
    if any(len(data.heldout) > 1 for data in runs):
        sampled = _curves(runs, "heldout", "heldout/sampled")
        greedy = _curves(runs, "heldout", "heldout/greedy", css="thin ", suffix=", greedy")
        found.append(("Held-out prompts", Chart("Held-out success by step", steps, UNIT, [*sampled, *greedy])))
    rewards = pd.concat([data.steps["reward"] for data in runs]).astype(float).dropna()
    if len(rewards):
        low, high = min(0.0, float(rewards.min())), max(1.0, float(rewards.max()))
        y = UNIT if (low, high) == (0.0, 1.0) else Axis(low, high)
        lines = _curves(runs, "steps", "reward", window=10)
        title = "Training prompts (mean of 10 steps)"
        found.append((title, Chart("Mean reward in training by step", steps, y, lines)))
    return found


def rollouts(data: RunData, group_size: float) -> list[tuple[str, Chart]]:
    """Heat map of rollouts a prompt over steps, and group size against predicted success."""
    history = data.history
    grid, edges = heat_map(history)
    cells = Cells(edges, np.linspace(0, 1, ROWS + 1), grid, "rollouts")
    y = replace(UNIT, title="success rate of the prompt over the run")
    chart = Chart("Mean rollouts of a prompt, by step and success rate", Axis(edges[0], edges[-1], "step"), y, [cells])
    found = [("Rollouts by step (across) and by the prompt's success rate over the run (up)", chart)]
    return (
        [*found, ("Group size by predicted success", _sizes(history, group_size))] if data.predicts_success else found
    )


def heat_map(history: pd.DataFrame) -> tuple[FloatArray, FloatArray]:
    """Mean group size by success rate and step, both in bins.

    Returns:
        (grid (ROWS, K), step edges (K + 1,), from 1 as the log counts): rows are tenths of the prompt's success rate
        over the run, lowest first; columns hold steps, as many as leave about two groups for each cell; NaN where
        there was none.
    """
    totals = history.groupby("prompt_id")[["successes", "n_rollouts"]].sum()
    rate = (totals["successes"] / totals["n_rollouts"]).clip(0, 1)
    row = np.minimum(np.floor(rate[history["prompt_id"]].to_numpy(float) * ROWS + 1e-9), ROWS - 1).astype(int)
    step = history["step"].to_numpy(float) + 1
    first, last = int(step.min()), int(step.max()) + 1
    columns = int(np.clip(len(history) // (2 * ROWS), 1, min(60, last - first)))
    edges = np.linspace(first, last, columns + 1)
    column = np.clip(np.searchsorted(edges, step, side="right") - 1, 0, columns - 1)
    sums, counts = np.zeros((ROWS, columns)), np.zeros((ROWS, columns))
    np.add.at(sums, (row, column), history["group_size"].to_numpy(float))
    np.add.at(counts, (row, column), 1.0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan), edges


def reliability(runs: Sequence[RunData]) -> Chart:
    """Predicted success against observed success in ten bins, over the main policy's share of rollouts."""
    marks: list[Mark] = [Line(DIAGONAL, DIAGONAL, "uniform")]
    names: list[tuple[str, str]] = []
    for i, (policy, history) in enumerate(histories_of(runs).items()):
        table = reliability_table(history)
        x, rate, half = (table[name].to_numpy(float) for name in ("predicted", "rate", "half"))
        if i == 0:
            share = np.zeros(10)
            share[(table["middle"].to_numpy(float) * 10).astype(int)] = table["share"]
            marks.insert(0, Bars(np.linspace(0, 1, 11), share / 3, "share"))
        marks += _measured(x, rate, np.clip(rate - half, 0, 1), np.clip(rate + half, 0, 1), series(i))
        names.append((series(i), policy))
    names += [("uniform", "perfect calibration"), ("share", f"share of rollouts, {names[0][1]} (a third of the scale)")]
    x_axis, y_axis = replace(UNIT, title="predicted success probability, before the step"), UNIT
    return Chart("Observed success rate by predicted probability", x_axis, y_axis, marks, names)


def reliability_table(history: pd.DataFrame, bins: int = 10) -> pd.DataFrame:
    """Columns middle, predicted, rate, half (1.96 standard errors over prompts' groups), share of rollouts."""
    table = history.loc[history["n_rollouts"] > 0]
    p, k, n = (table[c].to_numpy(float) for c in ("predicted_mean", "successes", "n_rollouts"))
    index = np.clip((p * bins).astype(int), 0, bins - 1)
    rows = []
    for b in range(bins):
        inside = index == b
        total = n[inside].sum()
        if total:
            rate = k[inside].sum() / total
            error = np.sqrt(np.square(k[inside] - rate * n[inside]).sum()) / total
            mean = (p[inside] * n[inside]).sum() / total
            rows.append(((b + 0.5) / bins, mean, rate, 1.96 * error, total / n.sum()))
    return pd.DataFrame(rows, columns=["middle", "predicted", "rate", "half", "share"])


def variance(runs: Sequence[RunData], estimator: str) -> list[tuple[str, Chart]]:
    """Predicted against realised p(1-p), and the variance ratio to equal groups by step."""
    ratio = (f"{policies_of(runs)[0]}: variance relative to equal groups", _ratio(runs, estimator))
    if not runs[0].predicts_success:
        return [ratio]
    marks: list[Mark] = []
    top = 0.05
    names = []
    for i, (policy, history) in enumerate(histories_of(runs).items()):
        table = variance_table(history)
        x, y, half = (table[name].to_numpy(float) for name in ("predicted", "realised", "half"))
        marks += _measured(x, y, y - half, y + half, series(i))
        names.append((series(i), policy))
        top = max(top, float((y + half).max(initial=0.0)), float(x.max(initial=0.0)))
    marks.insert(0, Line(np.array([0.0, top]), np.array([0.0, top]), "uniform"))
    x_axis, y_axis = Axis(0.0, top, "predicted, before the step"), Axis(0.0, top)
    names.append(("uniform", "as predicted"))
    chart = Chart("Realised against predicted p(1-p)", x_axis, y_axis, marks, names)
    return [("p(1-p) of a prompt: realised (up), predicted (across)", chart), ratio]


def variance_table(history: pd.DataFrame, bins: int = 8) -> pd.DataFrame:
    """Columns predicted, realised, half (1.96 standard errors), in bins of equally many groups."""
    realised = sample_variance(history)
    known = ~np.isnan(realised)
    predicted = history["predicted_bernoulli_variance"].to_numpy(float)[known]
    realised = realised[known]
    order = np.argsort(predicted, kind="stable")
    rows = []
    for part in np.array_split(order, min(bins, len(order)) or 1):
        if len(part):
            error = realised[part].std(ddof=1) / np.sqrt(len(part)) if len(part) > 1 else 0.0
            rows.append((predicted[part].mean(), realised[part].mean(), 1.96 * error))
    return pd.DataFrame(rows, columns=["predicted", "realised", "half"])


def _ratio(runs: Sequence[RunData], estimator: str) -> Chart:
    first = policies_of(runs)[0]
    tables = [variance_ratios(data.history, estimator) for data in runs if data.run.policy == first]
    sums = pd.concat(tables).groupby("step").sum()
    window = max(1, min(20, len(sums) // 3))
    rolled = sums.rolling(window, min_periods=window).sum()
    x = sums.index.to_numpy(float) + 1
    ends = np.array([x.min(), max(x.max(), x.min() + 1)])
    marks: list[Mark] = [Line(ends, np.ones(2), "uniform", "equal groups")]
    values = [np.ones(1)]
    for i, name in enumerate(("predicted", "realised")):
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = (rolled[name] / rolled[f"{name}_equal"]).to_numpy(float)
        marks.append(Line(x, ratio, series(i), name))
        values.append(ratio[np.isfinite(ratio)])
    every = np.concatenate(values)
    y = Axis(float(every.min()) - 0.05, float(every.max()) + 0.05)
    first, last = ends.tolist()
    return Chart("Variance ratio by step", Axis(first, last, f"step (sums of {window} steps)"), y, marks)


def _sizes(history: pd.DataFrame, group_size: float) -> Chart:
    half = history["step"].min() + (history["step"].max() - history["step"].min()) / 2
    marks: list[Mark] = [Line(DIAGONAL, np.full(2, group_size), "uniform", "equal groups")]
    top = group_size
    parts = (("first half", history["step"] <= half, "thin c1"), ("second half", history["step"] > half, "c0"))
    for name, chosen, css in parts:
        part = history[chosen]
        if not len(part):
            continue
        bins = np.clip((part["predicted_mean"].to_numpy(float) * 10).astype(int), 0, 9)
        table = part.assign(bin=bins).groupby("bin").agg({"predicted_mean": "mean", "group_size": "mean"})
        sizes = table["group_size"].to_numpy(float)
        marks.append(Line(table["predicted_mean"].to_numpy(float), sizes, css, name))
        top = max(top, float(sizes.max()))
    x_axis = replace(UNIT, title="predicted success probability")
    return Chart("Mean group size by predicted success probability", x_axis, Axis(0.0, 1.08 * top), marks)


def _measured(x: FloatArray, y: FloatArray, low: FloatArray, high: FloatArray, css: str) -> list[Mark]:
    return [Spans(x, low, high, css), Line(x, y, f"thin {css}"), Dots(x, y, np.full(len(x), 3.5), css)]


def _curves(
    runs: Sequence[RunData], table: str, column: str, *, window: int = 1, css: str = "", suffix: str = ""
) -> list[Mark]:
    """A line a policy, the mean over its seeds, over a faint line a seed."""
    lines: list[Mark] = []
    for i, policy in enumerate(policies_of(runs)):
        tables = [getattr(data, table) for data in runs if data.run.policy == policy and len(getattr(data, table))]
        found = [t.set_index("step")[column].astype(float).rolling(window, min_periods=1).mean() for t in tables]
        if not found:
            continue
        mean = pd.concat(found, axis=1).mean(axis=1).sort_index()
        seeds = found if len(found) > 1 else []
        lines += [Line(one.index.to_numpy(float), one.to_numpy(float), f"seed {series(i)}") for one in seeds]
        look = f"{css}{series(i)}"
        lines.append(Line(mean.index.to_numpy(float), mean.to_numpy(float), look, f"{policy}{suffix}"))
    return lines
