"""Write the report folder: metrics, history, configuration, charts and the page."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from viprl._files import write_text
from viprl.reports.png import write_png
from viprl.training.callbacks import write_json
from viprl.training.config import TrainConfig
from viprl.training.report import charts
from viprl.training.report.charts import Section
from viprl.training.report.collect import RunData, differences, read_run, summary_row
from viprl.training.report.page import render_page
from viprl.training.report.words import closing_lines
from viprl.training.run import Run

PAGE = "report.html"


def write_report(folder: Path, config: TrainConfig, runs: Sequence[Run]) -> tuple[Path, tuple[str, ...]]:
    """Write the report of runs that have logged at least one step.

    Files: ``report.html`` (self-contained), ``metrics.jsonl`` and ``history.parquet`` (all runs, with columns policy
    and seed), ``summary.json``, ``config.yaml`` and the charts as PNG.

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
    sections = make_sections(config, tables)
    for section in sections:
        write_png(folder / f"{section.name}.png", [chart for _, chart in section.panels])
    page = folder / PAGE
    write_text(page, render_page(config, rows, paired, sections))
    lines = [*closing_lines(rows, paired), f"look at {page}: did it learn, where did the rollouts go?"]
    if (folder / "history.parquet").exists():
        lines.append(f"the history in {folder / 'history.parquet'} is what `viprl replay` reads")
    return page, tuple(lines)


def make_sections(config: TrainConfig, tables: Sequence[RunData]) -> list[Section]:
    """All charts that the runs' history allows."""
    main = tables[0]
    learning = Section(
        "learning_curve",
        "Did it learn?",
        "Held-out prompts were in neither the training nor the warm start. Strong lines are means over seeds, faint "
        "lines single seeds.",
        charts.learning(tables),
    )
    sections = [learning] if learning.panels else []
    if any(data.history.empty for data in tables):
        return sections
    sections.append(
        Section(
            "rollouts",
            f"Where did the rollouts go? ({main.label})",
            "Blank cells had no prompt. Prompts that always fail or always succeed teach nothing; those in between "
            "should gather the rollouts. Equal groups would be one colour.",
            charts.rollouts(main, config.group_size),
        )
    )
    if main.predicts_success:
        sections.append(
            Section(
                "reliability",
                "Can the predictions be trusted?",
                "On the dashed line, prompts predicted to succeed with probability 0.7 did so in 70 % of their "
                "rollouts. Vertical lines are 95 % intervals.",
                [("Observed success rate by predicted probability", charts.reliability(tables))],
            )
        )
    sections.append(
        Section(
            "variance",
            "Predicted against realised variance",
            "What the allocation was based on against what the rollouts' rewards showed, and what follows for the "
            "variance relative to equal groups of the same budget: below 1 is better. Where the guard holds, groups "
            "are equal and the ratio is 1.",
            charts.variance(tables, config.estimator),
        )
    )
    return sections


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
