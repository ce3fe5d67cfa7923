"""Write the report folder: metrics, history, configuration, pictures and the page."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from viprl.training.callbacks import write_json
from viprl.training.config import TrainConfig
from viprl.training.report import pictures
from viprl.training.report.collect import RunData, differences, read_run, summary_row
from viprl.training.report.style import Picture, draw
from viprl.training.run import Run

PAGE = "report.html"


def write_report(folder: Path, config: TrainConfig, runs: Sequence[Run]) -> tuple[Path, tuple[str, ...]]:
    """Write the report of runs that have logged at least one step.

    Files: ``report.html`` (self-contained), ``metrics.jsonl`` and ``history.parquet`` (all runs, with columns policy
    and seed), ``summary.json``, ``config.yaml`` and the pictures as PNG.

    Returns:
        (the page, closing lines for the terminal).
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = [read_run(run) for run in runs]
    tables.sort(key=lambda data: config.policies.index(data.run.policy))
    _write_tables(folder, tables)
    rows = [summary_row(data, config.estimator) for data in tables]
    paired = differences(tables)
    write_json(folder / "summary.json", {"runs": [_finite(row) for row in rows], "differences": paired})
    shutil.copy(Path(config.output) / "config.yaml", folder / "config.yaml")
    page = folder / PAGE
    page.write_text(render_page(config, rows, paired, draw_pictures(folder, config, tables)), encoding="utf-8")
    return page, closing_lines(config, rows, paired, page)


def draw_pictures(folder: Path, config: TrainConfig, tables: Sequence[RunData]) -> list[Picture]:
    """All pictures that the runs' history allows."""
    main = next(data for data in tables if data.run.policy == tables[0].run.policy)
    drawn = [
        draw(
            "learning_curve",
            "Did it learn?",
            "Held-out prompts were in neither the training nor the warm start. Thick lines are means over seeds, thin "
            "lines single seeds.",
            (9.6, 3.6),
            lambda figure, theme: pictures.paint_learning(figure, theme, tables),
            folder,
        )
    ]
    if any(data.history.empty for data in tables):
        return drawn
    drawn += [
        draw(
            "rollouts",
            f"Where did the rollouts go? ({main.label})",
            "Each row of the map holds the same number of prompts, the hardest at the bottom; grey cells had no "
            "prompt. Prompts that always fail or always succeed teach nothing; those in between should gather the "
            "rollouts. Equal groups would be one colour.",
            (9.6, 4.0),
            lambda figure, theme: pictures.paint_rollouts(figure, theme, main, config.group_size),
            folder,
        ),
        draw(
            "reliability",
            "Can the predictions be trusted?",
            "On the diagonal, prompts predicted to succeed with probability 0.7 did so in 70 % of their rollouts. Bars "
            "are 95 % intervals.",
            (6.4, 4.6),
            lambda figure, theme: pictures.paint_reliability(figure, theme, tables),
            folder,
        ),
        draw(
            "variance",
            "Predicted against realised variance",
            "Left: what the allocation was based on against what the rollouts showed. Right: the sum of gradient "
            "variances relative to equal groups of the same budget, below 1 is better; the realised one is an unbiased "
            "estimate from the same rollouts. Where the guard holds, groups are equal and the ratio is 1. It assumes "
            "that a rollout's gradient noise is alike for all prompts.",
            (9.6, 3.8),
            lambda figure, theme: pictures.paint_variance(figure, theme, tables, config.estimator),
            folder,
        ),
    ]
    return drawn


def render_page(
    config: TrainConfig, rows: Sequence[dict[str, Any]], paired: Sequence[dict[str, Any]], drawn: Sequence[Picture]
) -> str:
    """The page as one string: styles and pictures inside, nothing from the network."""
    from importlib.resources import files

    import yaml
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["rate"] = _rate
    environment.filters["signed"] = lambda value: f"{value:+.3f}"
    environment.filters["percent"] = lambda value: f"{100 * value:.2f} %"
    template = environment.from_string(files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8"))
    return template.render(
        config=config,
        rows=rows,
        differences=paired,
        pictures=drawn,
        main=rows[0],
        source=yaml.safe_dump(config.to_dict(), sort_keys=False),
    )


def closing_lines(
    config: TrainConfig, rows: Sequence[dict[str, Any]], paired: Sequence[dict[str, Any]], page: Path
) -> tuple[str, ...]:
    """What to look at, in a few lines."""
    lines = [""]
    for row in rows:
        if "sampled_start" in row:
            lines.append(
                f"{row['policy']} (seed {row['seed']}): held-out success {row['sampled_start']:.3f} -> "
                f"{row['sampled_end']:.3f} sampled, {row['greedy_start']:.3f} -> {row['greedy_end']:.3f} greedy, "
                f"after {row['rollouts']} rollouts"
            )
    for pair in paired:
        low, high = pair["interval"]
        lines.append(
            f"{pair['first']} - {pair['other']} (seed {pair['seed']}): {pair['estimate']:+.3f} "
            f"[{low:+.3f}, {high:+.3f}] over held-out prompts; one seed says little about the policies"
        )
    main = rows[0]
    lines += [
        f"{main['policy']}: gradient variance relative to equal groups "
        f"{_rate(main['predicted_ratio'])} predicted, "
        f"{_rate(main['realised_ratio'])} realised; predicting and allocating took "
        f"{100 * main['overhead_share']:.2f} % of the step time",
        f"look at {page}: did it learn, where did the rollouts go, can the predictions be trusted",
        f"the history in {page.parent / 'history.parquet'} is what `viprl replay` reads",
    ]
    return tuple(lines)


def _rate(value: float) -> str:
    """Three digits; a dash where nothing was measured (a run in which every group was dead has no variance)."""
    return "–" if math.isnan(value) else f"{value:.3f}"


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def _write_tables(folder: Path, tables: Sequence[RunData]) -> None:
    with open(folder / "metrics.jsonl", "w", encoding="utf-8") as file:
        for data in tables:
            for row in data.run.metrics.read():
                file.write(json.dumps({"policy": data.run.policy, "seed": data.run.seed, **row}) + "\n")
    histories = [
        data.history.assign(policy=data.run.policy, seed=data.run.seed) for data in tables if not data.history.empty
    ]
    if histories:
        pd.concat(histories, ignore_index=True).to_parquet(folder / "history.parquet", index=False)
