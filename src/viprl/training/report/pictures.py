"""The report's pictures. Each function paints one figure from the runs' tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from viprl._arrays import FloatArray
from viprl.training.report.collect import RunData, sample_variance, variance_ratios
from viprl.training.report.style import DASHES, Theme

GREEDY_ALPHA = 0.45  # greedy curves are the faint ones


def policies_of(runs: Sequence[RunData]) -> list[str]:
    """Policies in order of appearance; the first is the job's main one."""
    return list(dict.fromkeys(data.run.policy for data in runs))


def paint_learning(figure: Any, theme: Theme, runs: Sequence[RunData]) -> None:
    """Held-out success (sampled, greedy) and success in training, by step; thin lines are seeds, thick their mean."""
    evaluated = any(len(data.heldout) > 1 for data in runs)
    axes = figure.subplots(1, 2 if evaluated else 1, squeeze=False)[0]
    if evaluated:
        _curves(axes[0], theme, runs, "heldout", ("heldout/sampled", "heldout/greedy"))
        axes[0].set(title="Held-out prompts", xlabel="step", ylabel="success rate", ylim=(0, 1.02))
        looks = (("sampled", 1.0), ("greedy", GREEDY_ALPHA))
        handles = [axes[0].plot([], [], color=theme.ink, alpha=alpha, label=name)[0] for name, alpha in looks]
        axes[0].legend(handles=handles, loc="lower right", title="strong and faint", title_fontsize=9)
    _curves(axes[-1], theme, runs, "steps", ("reward",), window=10)
    axes[-1].set(title="Training prompts (mean of 10 steps)", xlabel="step", ylabel="mean reward, every prompt alike")
    rewards = pd.concat([data.steps["reward"] for data in runs])
    if rewards.between(0, 1).all():
        axes[-1].set_ylim(0, 1.02)
    axes[-1].legend(handles=_policy_handles(axes[-1], theme, policies_of(runs)), loc="lower right")


def paint_rollouts(figure: Any, theme: Theme, data: RunData, group_size: float) -> None:
    """Heat map of rollouts a prompt over steps (left), and group size against predicted success (right)."""
    left, right = figure.subplots(1, 2, width_ratios=(1.45, 1))
    history = data.history
    grid, edges, rates = heat_map(history)
    image = left.imshow(
        np.ma.masked_invalid(grid),
        aspect="auto",
        origin="lower",
        interpolation="nearest",
        cmap=theme.heat,
        extent=(edges[0], edges[-1], 0, len(grid)),
        vmin=float(np.nanmin(grid)),
        vmax=max(float(np.nanmax(grid)), float(np.nanmin(grid)) + 1),
    )
    left.set_facecolor(theme.blank)
    left.grid(False)
    marks = np.linspace(0, len(grid) - 1, min(6, len(grid))).round().astype(int)
    left.set_yticks(marks + 0.5, [f"{rates[m]:.2f}" for m in marks])
    left.set(title="Mean rollouts a prompt", xlabel="step", ylabel="success rate of the prompt over the run")
    figure.colorbar(image, ax=left, shrink=0.9, pad=0.02).outline.set_edgecolor(theme.quiet)
    _paint_sizes(right, theme, history, group_size)


def heat_map(history: pd.DataFrame, *, rows: int = 24) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Mean group size by prompt and step, both in bins.

    Returns:
        (grid (R, K), step edges (K + 1,), success rate of each row (R,)): rows hold prompts of rising success rate, in
        equal numbers; columns hold steps, as many as leave about two groups for each cell; NaN without a group.
    """
    totals = history.groupby("prompt_id")[["successes", "n_rollouts"]].sum()
    rate = (totals["successes"] / totals["n_rollouts"]).sort_values(kind="stable")
    rows = max(1, min(rows, len(rate)))
    row_of = pd.Series(np.arange(len(rate)) * rows // len(rate), index=rate.index)
    first, last = int(history["step"].min()), int(history["step"].max()) + 1
    columns = int(np.clip(len(history) // (2 * rows), 1, min(60, last - first)))
    edges = np.linspace(first, last, columns + 1)
    column = np.clip(np.searchsorted(edges, history["step"].to_numpy(), side="right") - 1, 0, columns - 1)
    sums, counts = np.zeros((rows, columns)), np.zeros((rows, columns))
    where = (row_of[history["prompt_id"]].to_numpy(), column)
    np.add.at(sums, where, history["group_size"].to_numpy(float))
    np.add.at(counts, where, 1.0)
    grid = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return grid, edges, rate.groupby(row_of).mean().to_numpy(float)


def paint_reliability(figure: Any, theme: Theme, runs: Sequence[RunData]) -> None:
    """Predicted success against observed success in ten bins, with the share of rollouts in each bin below."""
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot([0, 1], [0, 1], color=theme.quiet, linewidth=1)
    names = policies_of(runs)
    for i, policy in enumerate(names):
        history = pd.concat([data.history for data in runs if data.run.policy == policy])
        table = reliability_table(history)
        low, high = table["rate"] - table["half"], table["rate"] + table["half"]
        color, dash = theme.series[i % len(theme.series)], DASHES[i % len(DASHES)]
        upper.errorbar(
            table["predicted"],
            table["rate"],
            yerr=[table["rate"] - low.clip(0), high.clip(upper=1) - table["rate"]],
            color=color,
            linestyle=dash,
            marker="os^Dv*"[i % 6],
            markersize=4.5,
            capsize=2,
            label=policy,
        )
        width = 0.08 / len(names)
        lower.bar(table["middle"] + (i - (len(names) - 1) / 2) * width, table["share"], width=width, color=color)
    upper.set(ylabel="observed success rate", xlim=(0, 1), ylim=(0, 1))
    upper.legend(loc="upper left")
    lower.set(xlabel="predicted success probability, before the step", ylabel="share of\nrollouts")


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


def paint_variance(figure: Any, theme: Theme, runs: Sequence[RunData], estimator: str) -> None:
    """Predicted against realised p(1-p) (left), and the gradient variance relative to equal groups by step (right)."""
    left, right = figure.subplots(1, 2)
    top = 0.05
    for i, policy in enumerate(policies_of(runs)):
        history = pd.concat([data.history for data in runs if data.run.policy == policy])
        table = variance_table(history)
        color, dash = theme.series[i % len(theme.series)], DASHES[i % len(DASHES)]
        left.errorbar(
            table["predicted"],
            table["realised"],
            yerr=table["half"],
            color=color,
            linestyle=dash,
            marker="os^Dv*"[i % 6],
            markersize=4.5,
            capsize=2,
            label=policy,
        )
        top = max(top, float((table["realised"] + table["half"]).max()), float(table["predicted"].max()))
    left.plot([0, top], [0, top], color=theme.quiet, linewidth=1)
    left.set(title="p(1-p) of a prompt", xlabel="predicted, before the step", ylabel="realised, k(n-k)/(n(n-1))")
    left.legend(loc="upper left")
    _paint_ratio(right, theme, runs, estimator)


def variance_table(history: pd.DataFrame, bins: int = 8) -> pd.DataFrame:
    """Columns predicted, realised, half (1.96 standard errors), in bins of equally many groups."""
    realised = sample_variance(history)
    known = ~np.isnan(realised)
    predicted = history["predicted_bernoulli_variance"].to_numpy(float)[known]
    realised = realised[known]
    order = np.argsort(predicted, kind="stable")
    rows = []
    for part in np.array_split(order, min(bins, len(order))):
        error = realised[part].std(ddof=1) / np.sqrt(len(part)) if len(part) > 1 else 0.0
        rows.append((predicted[part].mean(), realised[part].mean(), 1.96 * error))
    return pd.DataFrame(rows, columns=["predicted", "realised", "half"])


def _paint_ratio(axis: Any, theme: Theme, runs: Sequence[RunData], estimator: str) -> None:
    first = policies_of(runs)[0]
    tables = [variance_ratios(data.history, estimator) for data in runs if data.run.policy == first]
    sums = pd.concat(tables).groupby("step").sum()
    window = max(1, min(20, len(sums) // 3))
    rolled = sums.rolling(window, min_periods=window).sum()
    for name, alpha, dash in (("predicted", 1.0, "-"), ("realised", 0.75, DASHES[1])):
        ratio = rolled[name] / rolled[f"{name}_equal"]
        axis.plot(sums.index + 1, ratio, color=theme.series[0], alpha=alpha, linestyle=dash, label=name)
    axis.axhline(1.0, color=theme.quiet, linewidth=1)
    axis.set(
        title=f"{first}, relative to equal groups", xlabel=f"step (sums of {window} steps)", ylabel="variance ratio"
    )
    axis.legend(loc="best")


def _paint_sizes(axis: Any, theme: Theme, history: pd.DataFrame, group_size: float) -> None:
    half = history["step"].min() + (history["step"].max() - history["step"].min()) / 2
    parts = [
        ("first half", history[history["step"] <= half], 0.5),
        ("second half", history[history["step"] > half], 1.0),
    ]
    for label, part, alpha in parts:
        if not len(part):
            continue
        bins = np.clip((part["predicted_mean"].to_numpy(float) * 10).astype(int), 0, 9)
        table = part.assign(bin=bins).groupby("bin").agg({"predicted_mean": "mean", "group_size": "mean"})
        axis.plot(
            table["predicted_mean"], table["group_size"], color=theme.series[0], alpha=alpha, marker="o", label=label
        )
    axis.axhline(group_size, color=theme.quiet, linewidth=1, linestyle=DASHES[1], label="equal groups")
    axis.set(title="Mean group size", xlabel="predicted success probability", xlim=(0, 1), ylim=(0, None))
    axis.legend(loc="best")


def _curves(
    axis: Any, theme: Theme, runs: Sequence[RunData], table: str, columns: Sequence[str], window: int = 1
) -> None:
    for i, policy in enumerate(policies_of(runs)):
        chosen = [getattr(data, table) for data in runs if data.run.policy == policy and len(getattr(data, table))]
        for column, alpha in zip(columns, (1.0, GREEDY_ALPHA), strict=False):
            series = [t.set_index("step")[column].rolling(window, min_periods=1).mean() for t in chosen]
            if not series:
                continue
            look = {"color": theme.series[i % len(theme.series)], "linestyle": DASHES[i % len(DASHES)]}
            if len(series) > 1:
                for one in series:
                    axis.plot(one.index, one, linewidth=0.7, alpha=0.4 * alpha, **look)
            mean = pd.concat(series, axis=1).mean(axis=1)
            axis.plot(mean.index, mean, alpha=alpha, **look)


def _policy_handles(axis: Any, theme: Theme, policies: Sequence[str]) -> list[Any]:
    return [
        axis.plot([], [], color=theme.series[i % len(theme.series)], linestyle=DASHES[i % len(DASHES)], label=policy)[0]
        for i, policy in enumerate(policies)
    ]
