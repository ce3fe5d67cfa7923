"""One replay from files to report: what ``viprl replay`` does."""

from __future__ import annotations

import dataclasses
import math
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from viprl.embeddings.files import read_vectors
from viprl.errors import ConfigurationError, require
from viprl.prompts import PromptSet
from viprl.prompts.files import read_prompts
from viprl.replay.engine.compare import compare
from viprl.replay.lineup import OWN_EMBEDDINGS, default_lineup, not_for, parse_rule
from viprl.replay.log import VisitLog
from viprl.replay.rates import Rates, rates_of_log
from viprl.replay.readers import ReadReport, read_log, read_rates
from viprl.replay.readers.report import OnError
from viprl.replay.report import write_report
from viprl.replay.rules import Setting, formula
from viprl.replay.saving import saving, saving_lines
from viprl.replay.summary import Summary, summarize
from viprl.replay.wording import calibration_lines, headline, text_table
from viprl.replay.worlds import DriftingPrompts, PromptPool, RecordedLog, World
from viprl.reports.progress import make_progress
from viprl.settings import AllocationSettings

PROTOCOLS = ("log", "pool", "drift", "resample")
POOL_SEEDS = (0, 1, 2)
FITTING = 0.9  # share of the steps that must be able to keep the default lower bound of three
FEWEST_RESAMPLES = 40  # a 95 % interval leaves a fortieth out on each side
# option -> its smallest value
LEAST = {"group_size": 2, "min_group_size": 2, "max_group_size": 2, "jobs": 1, "batch": 1, "epochs": 1}
LEAST |= {"resamples": FEWEST_RESAMPLES}


@dataclass
class ReplayRequest:
    """What to replay; see ``viprl replay --help`` for each field.

    Raises:
        ConfigurationError: a value out of its range, or options that contradict each other.
    """

    log: str | None = None
    protocol: str = "log"
    rules: Sequence[str] = ()
    out: str = "viprl-replay"
    format: str = "auto"
    on_error: OnError = "stop"
    columns: dict[str, str] = field(default_factory=dict)
    reward_column: str | None = None
    success_at: float | None = None
    rollouts: int | None = None
    prompts: str | None = None
    embeddings: str | None = None
    side_information: Sequence[str] = ()
    estimator: str = "rloo"
    group_size: float | None = None
    min_group_size: int | None = None
    max_group_size: int | None = None
    seeds: Sequence[int] = ()
    jobs: int | None = None
    outage: tuple[int, int] | None = None
    batch: int | None = None
    epochs: int = 2
    resamples: int = 2000
    candidates: int = 4
    selection: str = "learnability"
    fresh: bool = False

    def __post_init__(self) -> None:
        self._check_settings()
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= least):
                raise ConfigurationError(f"`{name}` must be a number >= {least}, but got {value}")
        if self.success_at is not None and not math.isfinite(self.success_at):
            raise ConfigurationError(f"`success_at` must be a finite number, but got {self.success_at}")
        if any(seed < 0 for seed in self.seeds):
            raise ConfigurationError(f"`seeds` must be >= 0, but got {list(self.seeds)}")
        if self.protocol not in PROTOCOLS:
            raise ConfigurationError(f"protocol must be one of {', '.join(PROTOCOLS)}, but got {self.protocol!r}")
        if self.protocol == "drift" and self.log is not None:
            raise ConfigurationError("the drift protocol simulates its prompts and takes no log")
        if self.protocol != "drift" and self.log is None:
            raise ConfigurationError(f"the {self.protocol} protocol needs a log")
        if self.outage is not None and self.protocol in ("pool", "drift"):
            raise ConfigurationError(f"an outage can be put into a log, but got protocol={self.protocol!r}")
        if self.rollouts is not None and self.protocol != "pool":
            raise ConfigurationError("`rollouts` says what is behind the rates of a pool; a log has its own counts")
        if self.prompts is None and (self.embeddings or self.side_information):
            raise ConfigurationError("--embeddings and --side-information need --prompts, whose rows they belong to")
        formula(self.estimator)
        self.selecting = AllocationSettings(candidates=self.candidates, selection=self.selection)

    def _check_settings(self) -> None:
        """Refuse what AllocationSettings refuse: of the estimator, the bounds, and every rule with a predictor."""
        common = AllocationSettings(
            estimator=self.estimator,
            variance="formula",
            min_group_size=self.min_group_size,
            max_group_size=self.max_group_size,
        )
        offered: dict[str, Any] = {"side_information": self.side_information} if self.side_information else {}
        if self.embeddings is not None or self.protocol == "drift":  # which draws its prompts' embeddings
            offered["embedding_model"] = OWN_EMBEDDINGS
        rules = [rule for rule in map(parse_rule, self.rules) if rule.predictor is not None]
        for rule in rules:
            rule.check_embeddings("embedding_model" in offered)
            common.replace(policy=rule.policy, predictor=rule.predictor, **rule.read(offered))
        unread = {name: offered[name] for name in offered if not any(rule.read(offered).get(name) for rule in rules)}
        if rules and self.protocol != "drift":
            common.replace(predictor=rules[0].predictor, **unread)


@dataclass
class ReplayResult:
    """What came out: the summary, the report's files, and whether it was cut short."""

    summary: Summary
    files: list[Path]
    interrupted: bool


def run_request(request: ReplayRequest, *, say: Callable[[str], None] = print, bar: bool = False) -> ReplayResult:
    """Read, replay, summarize, write the report.

    Args:
        request: what to do.
        say: takes lines for the user.
        bar: draw a progress line on stderr.

    Raises:
        ConfigurationError: options that the files contradict.
        LogFormatError, InvalidInputError: files that cannot be used.
        MissingDependencyError: a package that the report needs is not installed.
    """
    require("a replay's report.png", matplotlib="matplotlib")
    world, prompts, notes = build_world(request)
    setting = _setting(request, world)
    world, left_out = _fitting_steps(world, setting)
    notes += left_out
    for note in notes:
        say(note)
    rules = list(request.rules) or default_lineup(prompts, world)
    for rule in rules:
        why = not_for(parse_rule(rule), world)
        if why is not None:
            raise ConfigurationError(f"the rule {rule!r} cannot be replayed here: {why}")
    seeds = list(request.seeds) or list(POOL_SEEDS if request.protocol == "pool" else (0,))
    out = Path(request.out)
    if request.fresh:
        shutil.rmtree(out / "runs", ignore_errors=True)
    say(f"replaying {len(rules)} rules x {len(seeds)} seed{'s' * (len(seeds) > 1)} over {world.n_steps} steps")
    with make_progress(show=bar, stream=sys.stderr) as progress:
        comparison = compare(
            world,
            rules,
            prompts,
            setting,
            seeds=seeds,
            jobs=request.jobs,
            folder=out / "runs",
            progress=progress.count if bar else None,
        )
    summary = summarize(comparison, world, setting, resamples=request.resamples)
    summary.notes = notes
    if request.candidates > 1 and not comparison.interrupted:
        summary.saving = saving(world, prompts, setting, request.selecting, seeds=seeds, resamples=request.resamples)
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
    if summary.saving is not None:
        lines += ["", *saving_lines(summary.saving)]
    lines += [f"{rule} did not run: {why}" for rule, why in summary.failures.items()]
    if summary.interrupted:
        lines.append("interrupted: the report holds the rules that were finished; the same command goes on from here")
    return lines


def build_world(request: ReplayRequest) -> tuple[World, PromptSet, list[str]]:
    """The protocol's world, what is known of its prompts, and notes for the user."""
    if request.protocol == "drift":
        drifting = DriftingPrompts(batch=request.batch or 128, group_size=request.group_size or 8)
        return drifting, PromptSet(drifting.prompt_ids, embeddings=drifting.embeddings), []
    known = None if request.prompts is None else _known_prompts(request.prompts, request)
    return _pool(request, known) if request.protocol == "pool" else _recorded(request, known)


def _known_prompts(path: str, request: ReplayRequest) -> PromptSet:
    found = read_prompts(path, side_information=request.side_information, texts_required=False)
    prompts = found.named.prompts
    if request.embeddings is None:
        return prompts
    vectors = read_vectors(request.embeddings, prompts.ids, found.named.first_rows, len(found.rows))
    return dataclasses.replace(prompts, embeddings=vectors)


def _recorded(request: ReplayRequest, known: PromptSet | None) -> tuple[World, PromptSet, list[str]]:
    log, report = _read_log(request, None if known is None else known.ids)
    single = log.rollouts < 2
    report.drop("one rollout alone says nothing about the variance", int(single.sum()))
    log = log.subset(~single) if single.any() else log
    world = RecordedLog(log, budget=request.group_size, resample=request.protocol == "resample", outage=request.outage)
    return world, known or _own_prompts(log.prompt_ids, report), report.lines()


def _read_log(request: ReplayRequest, all_prompts: Sequence[str] | None) -> tuple[VisitLog, ReadReport]:
    return read_log(
        str(request.log),
        format=request.format,
        on_error=request.on_error,
        columns=request.columns,
        reward_column=request.reward_column,
        success_at=request.success_at,
        all_prompts=all_prompts,
    )


def _pool(request: ReplayRequest, known: PromptSet | None) -> tuple[World, PromptSet, list[str]]:
    path = Path(str(request.log))
    rates: Rates
    if path.is_dir():
        log, report = _read_log(request, None)
        if log.rewards == "real":
            raise ConfigurationError(f"a pool needs success rates, but {path} has real rewards and names no success")
        rates = rates_of_log(log)
    else:
        report = ReadReport("rates", request.on_error)
        rates = read_rates(path, report, columns=request.columns, rollouts=request.rollouts)
    prompts = known or _own_prompts(rates.prompt_ids, report)
    p = dict(zip(rates.prompt_ids, rates.probabilities().tolist(), strict=True))
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
    )
    return world, prompts, report.lines()


def _own_prompts(ids: Sequence[str], report: ReadReport) -> PromptSet:
    """Prompts with the texts that the log carries, if it carries them."""
    texts = [report.texts[i] for i in ids if i in report.texts]
    return PromptSet(tuple(ids), texts=texts if len(texts) == len(ids) else None)


def _setting(request: ReplayRequest, world: World) -> Setting:
    mean = float(str(world.describe()["mean_group_size"]))
    group = max(round(mean), 2)
    low = _default_lower(world, mean) if request.min_group_size is None else request.min_group_size
    high = max(4 * group, low) if request.max_group_size is None else request.max_group_size
    if isinstance(world, RecordedLog) and world.resample:
        recorded = int(world.log.rollouts.min())
        if recorded < high and request.max_group_size is None:
            high = recorded
        elif recorded < high:
            raise ConfigurationError(
                "resampling needs max_group_size <= rollouts recorded for every visit, but got "
                f"(max_group_size={high}, fewest rollouts={recorded})"
            )
    return Setting(formula(request.estimator), low, high)


def _default_lower(world: World, mean: float) -> int:
    """Three, or two where the mean or a good part of the steps has fewer rollouts a prompt than three."""
    if isinstance(world, RecordedLog) and world.budget is None:
        sizes, used = _step_totals(world.log)
        return 3 if np.mean(used >= 3 * sizes) >= FITTING else 2
    return 3 if mean >= 3 else 2


def _step_totals(log: VisitLog) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]:
    """(T,) prompts and (T,) rollouts of each step."""
    return np.diff(log.offsets), np.add.reduceat(log.rollouts, log.offsets[:-1])


def _fitting_steps(world: World, setting: Setting) -> tuple[World, list[str]]:
    """The world without recorded steps whose rollouts no group sizes within the bounds can use up."""
    if not isinstance(world, RecordedLog) or world.budget is not None:
        return world, []
    log = world.log
    sizes, used = _step_totals(log)
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
