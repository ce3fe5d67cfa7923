"""One replay from files to report: what ``viprl replay`` does."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from viprl.errors import ConfigurationError
from viprl.replay.compare import Comparison, Progress, compare
from viprl.replay.lineup import Prompts, default_lineup
from viprl.replay.log import VisitLog
from viprl.replay.prompts_file import read_prompts
from viprl.replay.readers import ReadReport, rates_of_log, read_log, read_rates
from viprl.replay.readers.report import OnError
from viprl.replay.report import write_report
from viprl.replay.rules import Setting
from viprl.replay.summary import Summary, summarize
from viprl.replay.wording import calibration_lines, headline, text_table
from viprl.replay.worlds import DriftingPrompts, PromptPool, RecordedLog, World
from viprl.reports.progress import make_progress
from viprl.variance import RLOO, DrGRPO

PROTOCOLS = ("log", "pool", "drift", "resample")
ESTIMATORS = {"rloo": RLOO, "dr_grpo": DrGRPO}
REFERENCE_SEEDS = (3, 4, 5)


@dataclass
class ReplayRequest:
    """What to replay; see ``viprl replay --help`` for each field."""

    log: str | None = None
    protocol: str = "log"
    rules: Sequence[str] = ()
    out: str = "viprl-replay"
    format: str = "auto"
    on_error: OnError = "stop"
    columns: dict[str, str] = field(default_factory=dict)
    reward_column: str | None = None
    success_at: float | None = None
    prompts: str | None = None
    embeddings: str | None = None
    side_information: Sequence[str] = ()
    estimator: str = "rloo"
    group_size: float | None = None
    min_group_size: int | None = None
    max_group_size: int | None = None
    seeds: Sequence[int] | None = None
    jobs: int | None = None
    outage: tuple[int, int] | None = None
    batch: int | None = None
    epochs: int = 2
    draws: Literal["reference", "common"] = "reference"
    resamples: int = 2000
    fresh: bool = False


@dataclass
class ReplayResult:
    """What came out: the summary, the report's files, and whether it was cut short."""

    summary: Summary
    files: list[Path]
    interrupted: bool


def run(request: ReplayRequest, *, say: Callable[[str], None] = print, bar: bool = False) -> ReplayResult:
    """Read, replay, summarize, write the report.

    Args:
        request: what to do.
        say: takes lines for the user.
        bar: draw a progress bar on stderr.

    Raises:
        ConfigurationError: options that contradict each other.
        LogFormatError, InvalidInputError: files that cannot be used.
    """
    if request.protocol not in PROTOCOLS:
        raise ConfigurationError(f"protocol must be one of {PROTOCOLS}, but got {request.protocol!r}")
    world, prompts, notes = build_world(request)
    setting = _setting(request, world)
    world, left_out = _fitting_steps(world, setting)
    notes += left_out
    for note in notes:
        say(note)
    rules = list(request.rules) or default_lineup(prompts)
    seeds = list(request.seeds) if request.seeds else list(REFERENCE_SEEDS if request.protocol == "pool" else (0,))
    out = Path(request.out)
    if request.fresh:
        shutil.rmtree(out / "runs", ignore_errors=True)
    say(f"replaying {len(rules)} rules x {len(seeds)} seed{'s' * (len(seeds) > 1)} over {world.n_steps} steps")
    with make_progress(show=bar, stream=sys.stderr) as progress:
        comparison = _compare(world, rules, prompts, setting, seeds, request, out, progress.count)
    summary = summarize(comparison, world, setting, resamples=request.resamples)
    summary.notes = notes
    for line in report_lines(summary):
        say(line)
    files = write_report(summary, out)
    say("written: " + ", ".join(str(f) for f in files))
    return ReplayResult(summary, files, comparison.interrupted)


def report_lines(summary: Summary) -> list[str]:
    """What the terminal shows at the end."""
    lines = [""]
    for phase in summary.phases:
        lines += [*text_table(summary, phase), ""]
    lines += [*calibration_lines(summary), "", headline(summary)]
    lines += [f"{rule} did not run: {why}" for rule, why in summary.failures.items()]
    if summary.interrupted:
        lines.append("interrupted: the report holds the rules that were finished; the same command goes on from here")
    return lines


def build_world(request: ReplayRequest) -> tuple[World, Prompts, list[str]]:
    """The protocol's world, what is known of its prompts, and notes for the user."""
    if request.protocol == "drift":
        if request.log is not None:
            raise ConfigurationError("the drift protocol simulates its prompts and takes no log")
        drifting = DriftingPrompts(batch=request.batch or 128, group_size=request.group_size or 8)
        return drifting, Prompts(drifting.prompt_ids, drifting.embeddings), []
    if request.log is None:
        raise ConfigurationError(f"the {request.protocol} protocol needs a log")
    if request.outage is not None and request.protocol == "pool":
        raise ConfigurationError("an outage can be put into a log, not into a pool")
    known = None
    if request.prompts is not None:
        known = read_prompts(request.prompts, side_information=request.side_information, embeddings=request.embeddings)
    elif request.embeddings or request.side_information:
        raise ConfigurationError("--embeddings and --side-information need --prompts, whose rows they belong to")
    return _pool(request, known) if request.protocol == "pool" else _recorded(request, known)


def _recorded(request: ReplayRequest, known: Prompts | None) -> tuple[World, Prompts, list[str]]:
    log, report = read_log(
        str(request.log),
        format=request.format,
        on_error=request.on_error,
        columns=request.columns,
        reward_column=request.reward_column,
        success_at=request.success_at,
        all_prompts=None if known is None else known.ids,
    )
    log = _scorable(log, report)
    world = RecordedLog(log, budget=request.group_size, resample=request.protocol == "resample", outage=request.outage)
    return world, known or _own_prompts(log.prompt_ids, report), report.lines()


def _pool(request: ReplayRequest, known: Prompts | None) -> tuple[World, Prompts, list[str]]:
    path = Path(str(request.log))
    if path.is_dir():
        log, report = read_log(path, format=request.format, on_error=request.on_error, success_at=request.success_at)
        rates = rates_of_log(log)
    else:
        report = ReadReport("rates", request.on_error)
        rates = read_rates(path, report, columns=request.columns)
    prompts = known or _own_prompts(rates.prompt_ids, report)
    p = dict(zip(rates.prompt_ids, rates.probabilities.tolist(), strict=True))
    if set(prompts.ids) != set(rates.prompt_ids):
        raise ConfigurationError(
            f"the prompts file and the rates must have the same prompts, but {len(set(prompts.ids) - set(p))} have no "
            f"rate and {len(set(p) - set(prompts.ids))} no prompt"
        )
    world = PromptPool(
        prompts.ids,
        np.array([p[i] for i in prompts.ids]),
        batch=min(request.batch or 512, len(prompts.ids)),
        group_size=request.group_size or 8,
        epochs=request.epochs,
        draws=request.draws,
    )
    return world, prompts, report.lines()


def _own_prompts(ids: Sequence[str], report: ReadReport) -> Prompts:
    """Prompts with the texts that the log carries, if it carries them."""
    texts = [report.texts.get(i) for i in ids]
    return Prompts(tuple(ids), texts=None if None in texts else texts)  # type: ignore[arg-type]


def _scorable(log: VisitLog, report: ReadReport) -> VisitLog:
    single = log.rollouts < 2
    report.drop("one rollout alone says nothing about the variance", int(single.sum()))
    return log.subset(~single) if single.any() else log


def _setting(request: ReplayRequest, world: World) -> Setting:
    mean = float(world.describe()["mean_group_size"])  # type: ignore[arg-type]
    group = max(round(mean), 2)
    low = min(3, group) if request.min_group_size is None else request.min_group_size
    high = 4 * group if request.max_group_size is None else request.max_group_size
    if isinstance(world, RecordedLog) and world.resample:
        recorded = int(world.log.rollouts.min())
        if recorded < high and request.max_group_size is None:
            high = recorded
        elif recorded < high:
            raise ConfigurationError(
                "resampling needs max_group_size <= rollouts recorded for every visit, but got "
                f"(max_group_size={high}, fewest rollouts={recorded})"
            )
    return Setting(ESTIMATORS[request.estimator](), low, high)


def _fitting_steps(world: World, setting: Setting) -> tuple[World, list[str]]:
    """The world without recorded steps whose rollouts no group sizes within the bounds can use up."""
    if not isinstance(world, RecordedLog) or world.budget is not None:
        return world, []
    log = world.log
    sizes = np.diff(log.offsets)
    used = np.add.reduceat(log.rollouts, log.offsets[:-1])
    fits = (used >= setting.min_group_size * sizes) & (used <= setting.max_group_size * sizes)
    if fits.all():
        return world, []
    if not fits.any():
        raise ConfigurationError(
            "group sizes within [min_group_size, max_group_size] must be able to use up a step's rollouts, but at "
            f"[{setting.min_group_size}, {setting.max_group_size}] no recorded step fits; mean rollouts a prompt: "
            f"{used.sum() / sizes.sum():.2f}"
        )
    if world.outage is not None:
        raise ConfigurationError(
            f"{int((~fits).sum())} steps do not fit the bounds; with --outage give --group-size too"
        )
    kept = RecordedLog(log.subset(np.repeat(fits, sizes)), resample=world.resample)
    note = f"left out {int((~fits).sum()):,} steps: their rollouts do not fit group sizes within the bounds"
    return kept, [note]


def _compare(
    world: World,
    rules: list[str],
    prompts: Prompts,
    setting: Setting,
    seeds: list[int],
    request: ReplayRequest,
    out: Path,
    progress: Progress | None,
) -> Comparison:
    return compare(
        world,
        rules,
        prompts,
        setting,
        seeds=seeds,
        jobs=request.jobs,
        folder=out / "runs",
        progress=progress,
    )
