"""report.html of a job."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from viprl.reports.pages import page, warnings
from viprl.reports.svg import panels
from viprl.reports.tables import table, table_row
from viprl.training.config import TrainConfig
from viprl.training.report.charts import Section
from viprl.training.report.words import RATIO, choices, percent, rate, usage, verdict

HEAD = (
    "Run",
    "Steps",
    "Rollouts",
    "Held-out success",
    "95 % interval of the end",
    "Greedy",
    "Variance ratio, predicted / realised",
    "Policy's groups used",
    "Overhead",
)
FILES = "metrics.jsonl, history.parquet (for viprl replay), summary.json, config.yaml and the charts as PNG"


def render_page(
    config: TrainConfig, rows: Sequence[dict[str, Any]], paired: Sequence[dict[str, Any]], sections: Sequence[Section]
) -> str:
    """The page as one string: style and charts inside, nothing from the network."""
    import yaml

    main = rows[0]
    title = f"{config.task_name}: adaptive rollouts with {main['policy']}"
    prompts = config.budget // config.group_size
    setting = (
        f"{config.estimator}, {config.budget} rollouts a step over {prompts} prompts, predictor {config.predictor}, "
        f"prompt weighting {config.prompt_weighting}, model {config.model}"
    )
    used = [*usage(rows), *((False, text) for text in choices(rows))]
    told = "".join(f"<p>{escape(text)}</p>" for warn, text in used if not warn)
    parts = [
        f'<h1>{escape(title)}</h1><p class="headline">{escape(verdict(rows, paired))}</p>',
        warnings(text for warn, text in used if warn),
        told,
        f'<p class="lead">{escape(setting)}</p>',
        _tiles(rows),
        f'<p class="lead">{escape(RATIO)}</p>',
        f"<h2>Runs</h2>{table(HEAD, (table_row(_cells(row), HEAD) for row in rows), 'runs')}",
        *(_section(section) for section in sections),
        f"<h2>Configuration</h2><pre>{escape(yaml.safe_dump(config.to_dict(), sort_keys=False))}</pre>",
        f'<p class="lead">Beside this page: {FILES}.</p>',
    ]
    return page(f"viprl: {config.task_name}", "".join(parts))


def _section(section: Section) -> str:
    caption = f'<p class="lead">{escape(section.caption)}</p>'
    return f"<h2>{escape(section.title)}</h2>{caption}{panels(section.panels)}"


def _tiles(rows: Sequence[dict[str, Any]]) -> str:
    """The main run's numbers, each with the first compared policy's of the same seed beside it."""
    main = rows[0]
    other = next((r for r in rows if r["policy"] != main["policy"] and r["seed"] == main["seed"]), None)

    def tile(what: str, words: Callable[[dict[str, Any]], str]) -> str:
        beside = "" if other is None else f"<span>{escape(other['policy'])}: {words(other)}</span>"
        return f'<div class="tile"><b>{words(main)}</b><span>{escape(what)}</span>{beside}</div>'

    tiles = []
    if "sampled_start" in main:
        tiles.append(tile("held-out success rate, start → end", lambda row: _change(row, "sampled")))
    ratio = f"realised variance ratio, from rewards (predicted {rate(main['predicted_ratio'])})"
    tiles.append(tile(ratio, lambda row: rate(row["realised_ratio"])))
    if not math.isnan(main["log_loss"]):
        constant = f"log loss of the predictions (a constant: {rate(main['log_loss_constant'])})"
        tiles.append(tile(constant, lambda row: rate(row["log_loss"])))
    cost = "of the step time for predicting, allocating and observing"
    tiles.append(tile(cost, lambda row: percent(row["overhead_share"])))
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _change(row: dict[str, Any], name: str) -> str:
    return f"{rate(row[f'{name}_start'])} → {rate(row[f'{name}_end'])}" if f"{name}_start" in row else "–"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    unfinished = "" if row["finished"] else " (unfinished)"
    interval = "–"
    if "interval" in row:
        interval = f"{rate(row['interval'][0])} to {rate(row['interval'][1])}"
    used = "equal by choice" if row["policy_steps"] is None else f"{row['policy_steps']} of {row['steps']} steps"
    return (
        escape(f"{row['policy']}, seed {row['seed']}{unfinished}"),
        f"{row['steps']:,}",
        f"{row['rollouts']:,}",
        _change(row, "sampled"),
        interval,
        _change(row, "greedy"),
        f"{rate(row['predicted_ratio'])} / {rate(row['realised_ratio'])}",
        used,
        percent(row["overhead_share"]),
    )
