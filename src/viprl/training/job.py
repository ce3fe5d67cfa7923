"""The job of ``viprl train``: every policy and seed, one after the other, then the report."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from viprl._files import default_cache_dir
from viprl.errors import ConfigurationError
from viprl.reports.progress import Progress, make_progress
from viprl.tasks import make_task
from viprl.training.arguments import is_main_process, load_reward, main_process_first
from viprl.training.callbacks import MetricsFile
from viprl.training.config import TrainConfig
from viprl.training.run import METRICS_FILE, Run, runs_of, train_one, trainer_settings

CONFIG_FILE = "config.yaml"
REPORT_FOLDER = "report"
MAY_CHANGE = ("resume", "overwrite", "compare", "seeds", "eval_every", "eval_batch_size", "cache", "save_model")


@dataclass(frozen=True)
class JobResult:
    """What a job left behind.

    Attributes:
        finished: False when it was told to stop before its end.
        report: the page to open; None when no step was recorded, and on all processes but the first.
        lines: the closing words for the terminal.
    """

    finished: bool
    report: Path | None
    lines: tuple[str, ...]


def run_job(config: TrainConfig, *, progress: Progress | None = None) -> JobResult:
    """Train every run that is not finished yet, then write the report.

    Raises:
        ConfigurationError: settings that contradict each other, or an output folder that holds another job.
    """
    main = is_main_process()
    task = make_task(config.task_name, **config.task_settings)
    cache = Path(config.cache).expanduser() if config.cache else default_cache_dir()
    for run in runs_of(config):  # what cannot run is said before a file is written or a model is loaded
        trainer_settings(config, run, task, cache)
    load_reward(config.reward, task)
    with main_process_first():
        if main:
            prepare_output(config)
    shown = progress or make_progress(show=main)
    finished = True
    try:
        for run in runs_of(config):
            if config.resume and run.summary() is not None:
                shown.message(f"{run.name}: finished before")
                continue
            finished = train_one(config, run, task, cache, shown)
            if not finished:
                break
    finally:
        shown.close()
    if not main:
        return JobResult(finished, None, ())
    return _report(config, finished)


def prepare_output(config: TrainConfig) -> None:
    """Create the output folder, or check that ``resume`` continues the same job; write config.yaml.

    Raises:
        ConfigurationError: the folder holds a job with recorded steps and neither ``resume`` nor ``overwrite`` is set,
            or ``resume`` with other settings than the job's own.
    """
    import yaml

    output = Path(config.output)
    saved = output / CONFIG_FILE
    if saved.exists():
        before: dict[str, Any] = yaml.safe_load(saved.read_text(encoding="utf-8")) or {}
        if config.resume:
            now = config.to_dict()
            differ = [k for k in now if k not in MAY_CHANGE and before.get(k) != now[k]]
            if differ:
                changes = ", ".join(f"{k}: {before.get(k)!r} -> {now[k]!r}" for k in differ)
                raise ConfigurationError(f"resume=true needs the settings that the job was started with, but {changes}")
        elif not config.overwrite and any(_steps_in(folder) for folder in runs_of_saved(output, before)):
            raise ConfigurationError(
                f"`output` must be a new folder, but {str(output)!r} holds a job: set resume=true to continue it, "
                "overwrite=true to replace it, or another output"
            )
        else:  # overwritten, or nothing was recorded before it failed
            for run in runs_of_saved(output, before):
                shutil.rmtree(run, ignore_errors=True)
            shutil.rmtree(output / REPORT_FOLDER, ignore_errors=True)
    output.mkdir(parents=True, exist_ok=True)
    saved.write_text(yaml.safe_dump(config.to_dict(), sort_keys=False), encoding="utf-8")


def runs_of_saved(output: Path, saved: dict[str, Any]) -> list[Path]:
    """Folders of the runs that a saved configuration names."""
    policies = [saved.get("policy"), *(saved.get("compare") or [])]
    return [output / f"{policy}-seed{seed}" for policy in policies for seed in saved.get("seeds") or []]


def _report(config: TrainConfig, finished: bool) -> JobResult:
    from viprl.training.report import write_report

    output = Path(config.output)
    recorded = [run for run in runs_of(config) if _has_steps(run)]
    if not recorded:
        return JobResult(finished, None, ("nothing was recorded",))
    page, lines = write_report(output / REPORT_FOLDER, config, recorded)
    if not finished:
        lines = (*lines, "stopped before the end; continue with resume=true")
    return JobResult(finished, page, lines)


def _has_steps(run: Run) -> bool:
    return _steps_in(run.folder)


def _steps_in(folder: Path) -> bool:
    return any("reward" in row for row in MetricsFile(folder / METRICS_FILE).read())
