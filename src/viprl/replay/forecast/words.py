"""The forecast in words and tables."""

from __future__ import annotations

import dataclasses
from typing import Any

from viprl.replay.forecast.gains import WORTH, Forecast


def forecast_lines(result: Forecast) -> list[str]:
    """The forecast in words and two tables."""
    lines = [
        f"{result.prompts:,} prompts: mean success rate {100 * result.mean_rate:.0f}%, "
        f"{100 * result.never:.0f}% never solved (p < .01), {100 * result.always:.0f}% always (p > .99)",
        f"step: {result.batch:,} prompts, {result.budget:,} rollouts",
        "",
        f"recommended: L = {result.lower}, U = {result.upper}, mean group size {result.group_size} "
        f"(C = {result.group_size * result.batch:,} for {result.batch:,} prompts)",
        "",
    ]
    lines += [f"- {reason}" for reason in reasons(result)]
    lines += ["", "rollouts a prompt   budget C   dead groups: uniform  allocated   variance: uniform  allocated"]
    lines += [
        f"{row.group_size:17d} {row.budget:10,d} {100 * row.dead_uniform:21.0f}% {100 * row.dead_allocated:9.0f}% "
        f"{row.variance:18.2f} {row.allocated_variance:10.2f}"
        for row in result.budgets
    ]
    lines += ["(variance relative to uniform groups at the budget asked about; allocated: on second visits)", ""]
    lines.append("bounds at this budget     perfect   second visit   fourth visit")
    lines += [
        f"L = {b.lower:2d}, U = {b.upper:3d} {b.oracle:18.3f} {b.second:14.3f} {b.fourth:14.3f}"
        for b in result.bounds
        if b.lower == result.lower or b.upper == result.upper
    ]
    return lines


def reasons(result: Forecast) -> list[str]:
    """Why these bounds and this budget, a sentence or two each."""
    g, gain = result.budget / result.batch, result.gain
    widest = min(result.bounds, key=lambda b: (-b.upper, b.lower))
    texts = [
        f"Of {result.batch:,} groups of {g:.3g} rollouts about {result.dead_groups:,.0f} "
        f"({100 * result.dead_share:.0f}%) will have equal rewards and teach nothing; "
        f"{100 * result.dead_prompts:.0f}% would stay so even with 64 rollouts each.",
        f"With these bounds a perfect allocator brings the gradient's variance to {gain.oracle:.2f} of uniform's; one "
        f"that has seen each prompt once, to {gain.second:.2f}; three times, to {gain.fourth:.2f}. On first visits "
        "expect about 1.",
        f"L and U: the narrowest bounds that cost less than {WORTH:g} at the fourth visit. The widest tried (L = "
        f"{widest.lower}, U = {widest.upper}) reach {widest.fourth:.3f}, L = {gain.lower} and U = {gain.upper} "
        f"{gain.fourth:.3f}. A higher L notices sooner that a success rate has moved; a lower U bounds what a wrong "
        "prediction can waste.",
        _budget_reason(result, g),
    ]
    if gain.second > 0.95:
        texts.append("Allocation has little to gain on these prompts: their success rates are too much alike.")
    return texts


def _budget_reason(result: Forecast, g: float) -> str:
    fits = next((r for r in result.budgets if r.group_size == result.group_size), result.budgets[-1])
    if result.group_size <= g:
        return (
            f"C = {result.budget:,} is enough: from {fits.group_size} rollouts a prompt on, at most "
            f"{100 * (fits.efficiency - 1):.0f}% of the rollouts pay for the baseline, so beyond that more prompts a "
            "step are worth as much as more rollouts a prompt."
        )
    return (
        f"C = {result.budget:,} is tight: with {g:.3g} rollouts a prompt much goes into the baseline. "
        f"{fits.group_size} rollouts a prompt use them better: C = {fits.budget:,}, or "
        f"{result.budget // fits.group_size:,} prompts a step at the same budget."
    )


def forecast_data(result: Forecast, reading: list[str]) -> dict[str, Any]:
    """The forecast as plain data, JSON-ready; ``reading`` is what was said about the file."""
    plain = dataclasses.asdict(result)
    plain |= {"grid": result.grid.tolist(), "weights": result.weights.tolist()}
    return {**plain, "reasons": reasons(result), "reading": reading}
