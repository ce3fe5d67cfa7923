"""``viprl arena``: the demo's model trained under several rules at equal generated rollouts, in a few minutes.

A cell is one rule: ``uniform`` (equal groups for every prompt of the batch), ``default`` (viprl's), a policy (groups of
the batch) or a selection (which of four times as many candidates).
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from viprl import registry
from viprl._files import default_cache_dir
from viprl.errors import ConfigurationError, nearest
from viprl.evaluation import Interval
from viprl.history import parts, read_part
from viprl.reports.progress import Progress
from viprl.tasks import make_task
from viprl.training.config import TrainConfig
from viprl.training.run import Run, train_one, trainer_settings

RESULTS_FILE = "results.jsonl"
CONTROL = "uniform"
DEFAULT_CELLS = (CONTROL, "default", "vip", "top")
CANDIDATES = 4
POOL = {"name": "arithmetic", "train_size": 1024, "too_hard": 0.6, "test_size": 256}
TRAINER = {
    "learning_rate": 2e-4,
    "lr_scheduler_type": "constant_with_warmup",
    "warmup_steps": 10,
    "adam_beta2": 0.99,
    "save_strategy": "no",
}


def cell_settings(cell: str) -> dict[str, Any]:
    """What a cell changes in a job's configuration.

    Raises:
        ConfigurationError: no such cell; the message has the nearest one.

    >>> cell_settings("top")
    {'policy': 'vip', 'candidates': 4, 'selection': 'top'}
    """
    if cell == "default":
        return {"policy": "vip", "candidates": CANDIDATES}
    if cell in registry.names("policy"):
        return {"policy": cell, "candidates": 1}
    if cell in registry.names("selection"):
        return {"policy": "vip", "candidates": CANDIDATES, "selection": cell}
    known = dict.fromkeys(("default", *registry.names("policy"), *registry.names("selection")))
    raise ConfigurationError(f"a cell must be one of {', '.join(known)}, but got {cell!r}{nearest(cell, known)}")


@dataclass(frozen=True)
class Arena:
    """Every cell under every seed with the same number of rollouts.

    Attributes:
        output: folder of ``results.jsonl`` and the runs; what is in the file is not run again.
        cells: ``uniform`` is added where it is missing, since the others are compared with it.
        seeds: how many; they are 0, 1, ...
        rollouts: of each run, all that are generated.
        budget, group_size: rollouts of a step, and of a prompt on average.
        task: the pool, a task's name and settings.
        cache: folder of warm starts.
    """

    output: Path
    cells: Sequence[str] = DEFAULT_CELLS
    seeds: int = 1
    rollouts: int = 10_240
    budget: int = 256
    group_size: int = 8
    task: Mapping[str, Any] = field(default_factory=lambda: POOL)
    cache: Path | None = None
    eval_samples: int = 16

    def __post_init__(self) -> None:
        object.__setattr__(self, "cells", tuple(dict.fromkeys((CONTROL, *self.cells))))
        for cell in self.cells:
            cell_settings(cell)
        if self.seeds < 1:
            raise ConfigurationError(f"seeds >= 1 must hold, but got {self.seeds}")
        if self.rollouts < self.budget or self.rollouts % self.budget:
            raise ConfigurationError(
                f"rollouts must be a positive multiple of a step's {self.budget}, but got {self.rollouts}"
            )

    def config(self, cell: str, seed: int) -> TrainConfig:
        """The training job of one run."""
        return TrainConfig(
            task=self.task,
            output=str(self.output),
            budget=self.budget,
            group_size=self.group_size,
            steps=self.rollouts // self.budget,
            seeds=(seed,),
            eval_every=0,
            eval_samples=self.eval_samples,
            save_model=False,
            trainer=TRAINER,
            **cell_settings(cell),
        )

    def asked(self) -> dict[str, Any]:
        """What rows must agree on to be compared."""
        return {
            "rollouts": self.rollouts,
            "budget": self.budget,
            "group_size": self.group_size,
            "task": dict(self.task),
        }


def run_arena(arena: Arena, progress: Progress, show: Callable[[list[str]], None]) -> bool:
    """Train what is missing, seed by seed; ``show`` gets the table after each seed. False when told to stop."""
    results = arena.output / RESULTS_FILE
    rows = read_results(arena)
    done = {(row["cell"], row["seed"]) for row in rows}
    arena.output.mkdir(parents=True, exist_ok=True)
    for seed in range(arena.seeds):
        for cell in arena.cells:
            if (cell, seed) in done:
                continue
            row = _train(arena, cell, seed, progress)
            if row is None:
                return False
            rows.append(row)
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        progress.close()
        show(table(arena, [row for row in rows if row["seed"] <= seed]))
    return True


def read_results(arena: Arena) -> list[dict[str, Any]]:
    """Finished runs of this arena; those of other pools and budgets in the same file are passed over."""
    path, asked = arena.output / RESULTS_FILE, arena.asked()
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    try:
        rows = [json.loads(line) for line in lines]
    except ValueError as error:
        raise ConfigurationError(f"{path} must hold one JSON object a line, but: {error}") from error
    return [row for row in rows if all(row.get(key) == value for key, value in asked.items())]


def table(arena: Arena, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line a cell: held-out success, its paired difference from uniform, live groups, rollouts."""
    by_cell = {cell: {row["seed"]: row for row in rows if row["cell"] == cell} for cell in arena.cells}
    control = by_cell[CONTROL]
    lines = [
        f"{'cell':<18}{'held-out success':>17}{'minus uniform':>26}{'live groups':>13}{'rollouts':>10}{'seeds':>7}"
    ]
    for cell, own in by_cell.items():
        if not own:
            continue
        mean = {key: float(np.mean([row[key] for row in own.values()])) for key in ("heldout", "live_share")}
        shared = sorted(own.keys() & control.keys()) if cell != CONTROL else []
        difference = _worded([own[seed]["heldout"] - control[seed]["heldout"] for seed in shared])
        lines.append(
            f"{cell:<18}{mean['heldout']:>17.3f}{difference:>26}{mean['live_share']:>13.0%}"
            f"{arena.rollouts:>10,}{len(own):>7}"
        )
    return lines


def paired_interval(differences: Sequence[float], level: float = 0.95) -> Interval:
    """Student's interval of a mean over seeds; infinite for one seed."""
    values = np.asarray(differences, dtype=np.float64)
    mean, half = float(values.mean()), math.inf
    if len(values) > 1:
        half = float(values.std(ddof=1) / math.sqrt(len(values)) * student.ppf((1 + level) / 2, len(values) - 1))
    return Interval(mean, mean - half, mean + half, level)


def _worded(differences: Sequence[float]) -> str:
    if not differences:
        return ""
    found = paired_interval(differences)
    beside = "" if len(differences) < 2 else f" ({found.low:+.3f} to {found.high:+.3f})"
    return f"{found.estimate:+.3f}{beside}"


@dataclass(frozen=True)
class _CellRun(Run):
    cell: str

    @property
    def name(self) -> str:
        return f"{self.cell}, seed {self.seed}"


def _train(arena: Arena, cell: str, seed: int, progress: Progress) -> dict[str, Any] | None:
    """The row of one run; None when it was told to stop."""
    config = arena.config(cell, seed)
    run = _CellRun(config.policy, seed, arena.output / f"{cell}-seed{seed}", cell)
    begun = time.monotonic()
    task, cache = make_task(config.task_name, **config.task_settings), arena.cache or default_cache_dir()
    trainer_settings(config, run, task, cache)
    shutil.rmtree(run.folder, ignore_errors=True)  # of a run that was stopped
    if not train_one(config, run, task, cache, progress):
        return None
    summary = run.summary()
    assert summary is not None
    live = list(_live(run.folder))
    return {
        "cell": cell,
        "seed": seed,
        **arena.asked(),
        "heldout_start": summary["heldout_start"]["sampled"],
        "heldout": summary["heldout_end"]["sampled"],
        "live_share": float(np.mean(live)),
        "groups": len(live),
        "seconds": round(time.monotonic() - begun, 1),
    }


def _live(folder: Path) -> Iterator[bool]:
    """Whether each group of a run had a gradient."""
    from viprl.integrations.trl.mixin import HISTORY_FOLDER

    for path, _, _ in parts(folder / HISTORY_FOLDER):
        for row in read_part(path):
            if row["n_rollouts"] > 1:
                yield row["reward_var"] > 0
