"""What the report says in words: the same sentences stand on the page and in the terminal's last lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

RATIO = (
    "The variance ratio is computed from rewards: p(1-p) f(n) summed over the prompts, relative to equal groups of the "
    "same budget; it is no measured gradient (viprl gradient-variance measures that) and takes a rollout's gradient "
    "noise to be alike for all prompts."
)


def rate(value: float) -> str:
    """Three digits; a dash where nothing was measured (a run in which every group was dead has no variance)."""
    return "–" if math.isnan(value) else f"{value:.3f}"


def percent(value: float) -> str:
    """A share with two digits, or a dash."""
    return "–" if math.isnan(value) else f"{100 * value:.2f} %"


def verdict(rows: Sequence[dict[str, Any]], paired: Sequence[dict[str, Any]]) -> str:
    """One sentence: did the main policy help, as far as this job can tell?

    Args:
        rows: ``summary_row`` of each run, the main policy's first.
        paired: ``differences`` of the job.
    """
    main = rows[0]
    if "sampled_start" not in main:
        return f"{main['policy']}: held-out prompts were not evaluated, so nothing is said about success."
    learnt = f"{rate(main['sampled_start'])} -> {rate(main['sampled_end'])}"
    if not paired:
        alone = all(row["policy"] == main["policy"] for row in rows)
        missing = "only a run with compare: [uniform] can" if alone else "the runs to compare it with are not finished"
        return f"{main['policy']}: held-out success {learnt}; whether its allocation helped is not shown: {missing}."
    pair = next((pair for pair in paired if pair["other"] == "uniform"), paired[0])
    low, high = pair["interval"]
    shown = "better than" if low > 0 else "worse than" if high < 0 else "not shown to differ from"
    seeds = len(pair["seeds"])
    return (
        f"{pair['first']} is {shown} {pair['other']} after {main['rollouts']:,} rollouts each: held-out success "
        f"{rate(pair['first_rate'])} against {rate(pair['other_rate'])}, difference {pair['estimate']:+.3f} "
        f"(95 % interval {low:+.3f} to {high:+.3f} over held-out prompts; {seeds} seed{'s' * (seeds > 1)}, and another "
        "seed changes the result too)."
    )


def usage(rows: Sequence[dict[str, Any]]) -> list[tuple[bool, str]]:
    """(warn?, how often the policy's own groups were used), one sentence a run that is not uniform by choice."""
    found = []
    for row in rows:
        used, steps = row["policy_steps"], row["steps"]
        if used is None:
            continue
        text = f"{row['policy']} (seed {row['seed']}): the policy's groups were used in {used} of {steps} steps"
        if used == 0:
            text += "; the guard held equal groups throughout, so this run says nothing about the policy"
        found.append((used == 0, text + "."))
    return found


def choices(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Which prompts got rollouts, one sentence a run of a job in which some run chose; none where none did."""
    if not any("candidates" in row for row in rows):
        return []
    found = []
    for row in rows:
        name, live = f"{row['policy']} (seed {row['seed']})", percent(row["live_share"])
        if "candidates" in row:
            name += f": kept {row['kept']:.0f} prompts of {row['candidates']:.0f} candidates a step"
        else:
            name += ": every prompt of the batch"
        found.append(f"{name}; {live} of its groups had a gradient.")
    return found


def closing_lines(rows: Sequence[dict[str, Any]], paired: Sequence[dict[str, Any]]) -> list[str]:
    """The terminal's last lines, but for where the files are."""
    lines = [""]
    for row in rows:
        if "sampled_start" in row:
            lines.append(
                f"{row['policy']} (seed {row['seed']}): held-out success {row['sampled_start']:.3f} -> "
                f"{row['sampled_end']:.3f} sampled, {row['greedy_start']:.3f} -> {row['greedy_end']:.3f} greedy, "
                f"after {row['rollouts']} rollouts"
            )
        lines.append(
            f"{row['policy']} (seed {row['seed']}): variance ratio {rate(row['predicted_ratio'])} predicted, "
            f"{rate(row['realised_ratio'])} realised; allocating took {percent(row['overhead_share'])} of the step time"
        )
    lines += [RATIO, *choices(rows)]
    lines += [f"WARNING: {text}" if warn else text for warn, text in usage(rows)]
    return [*lines, verdict(rows, paired)]
