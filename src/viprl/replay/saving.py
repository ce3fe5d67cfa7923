"""What selecting prompts would have saved: the same rollouts, given to prompts that ``allocator.select`` keeps.

**Simulated**, where success probabilities are known (a pool, drift, a forecast): the run is played twice with the same
rollouts a step, once with uniform groups for the batch, once offering the candidates of that many batches to an
allocator that starts from nothing and learns from its own rollouts. What is live or dead is an expectation under the
true probabilities.

**Recorded**: of a prompt nothing is known but the groups that were recorded, so selection can be tried among these
alone. k recorded steps in a row are offered as the candidates of one step, which keeps as many groups as one of them
had. What was kept is scored by its own recorded rollouts, which the choice has not seen; the allocator learns from
these alone. Uniform is the mean over all candidates. The policy that came of it stays untold.

Notation: B prompts, C rollouts of a step, k candidates for each of the B, K = kB, g = C/B.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.special import gammaln
from scipy.stats import t as student

from viprl._arrays import FloatArray, IntArray
from viprl.allocator import RolloutAllocator
from viprl.build import build_selection
from viprl.evaluation.intervals import Interval
from viprl.plan import Plan
from viprl.prompts import PromptSet
from viprl.replay.bootstrap import PairedBootstrap
from viprl.replay.lineup import predictor_over
from viprl.replay.log import VisitLog
from viprl.replay.rates import Rates
from viprl.replay.rules import Setting
from viprl.replay.rules.base import uniform_sizes
from viprl.replay.worlds import DriftingPrompts, PromptPool, RecordedLog, World
from viprl.settings import AllocationSettings

PASSES, LONGEST = 4, 96  # a forecast is played for so many passes of uniform training, or so many steps
POOL, REPLICATES = 1024, 6  # of at most so many prompts, drawn anew so many times
ENOUGH = 0.9  # share of the visits that have the rollouts of a recorded group of the size that is tried
# of a step: rollouts; groups and live ones of uniform, and of the selection; live ones of as many prompts as it kept,
# drawn uniformly, with equal groups
Row = tuple[float, float, float, float, float, float]


@dataclass(frozen=True)
class Saving:
    """What selection would have done with the same rollouts.

    Attributes:
        basis: "simulated" or "recorded".
        candidates, selection: prompts offered for each of a batch; the selection's name.
        steps: compared, all seeds together.
        groups, group_size: of a step, on average; ``uniform_groups`` and ``uniform_group_size`` are the run's.
        dead, uniform_dead: share of the groups whose rewards are all equal.
        avoided: share of uniform's dead groups, 1 - dead / uniform_dead.
        rollouts: for as many live groups as uniform has, as a share of uniform's.
        by_choice: the same against equal groups for as many prompts as were kept: what the choice of prompts did,
            without the choice of how many.
    """

    basis: str
    candidates: int
    selection: str
    steps: int
    groups: float
    group_size: float
    uniform_groups: float
    uniform_group_size: float
    dead: float
    uniform_dead: float
    avoided: Interval
    rollouts: Interval
    by_choice: Interval


def saving(
    world: World,
    prompts: PromptSet,
    setting: Setting,
    settings: AllocationSettings,
    *,
    seeds: Sequence[int] = (0,),
    resamples: int = 2000,
) -> Saving | str:
    """What selection with these settings would have saved in this world; a sentence where that cannot be told.

    Args:
        prompts: what the predictor may read.
        setting: variance model and bounds.
        settings: whose predictor, candidates and selection (with what belongs to it) are taken.
        seeds: of the world, or of the draws from a recorded log.
        resamples: of the bootstrap over steps.
    """
    offered, runs = settings.candidates, []
    if isinstance(world, PromptPool | DriftingPrompts):
        offered = min(offered, len(world.prompt_ids) // world.batch)
        if offered < 2:
            return f"since {len(world.prompt_ids):,} prompts are no two batches of {world.batch:,} to choose among"
        settings = settings.replace(candidates=offered)
        for seed in seeds:
            runs.append(list(_simulated(world, offered, setting, _allocator(prompts, setting, settings), seed)))
    elif isinstance(world, RecordedLog):
        if world.rewards != "binary" or world.outage is not None:
            return "since that takes a log of successes as they were"
        if not world.resample:
            size = int(np.sort(world.log.rollouts)[int((1 - ENOUGH) * len(world.log))])
            setting = dataclasses.replace(setting, min_group_size=size, max_group_size=size)
        windows = list(_windows(world.log, offered, setting.min_group_size))
        if not windows:
            return f"since {world.n_steps:,} recorded steps hold no {offered} to choose among"
        for seed in seeds:
            allocator = _allocator(prompts, setting, settings)
            runs.append(list(_recorded(world, windows, offered, setting, allocator, seed)))
    basis = "recorded" if isinstance(world, RecordedLog) else "simulated"
    return _summarise([np.array(rows) for rows in runs], basis, settings, resamples)


def forecast_saving(
    rates: Rates, batch: int, setting: Setting, settings: AllocationSettings, *, group_size: float, seed: int = 0
) -> Saving | str:
    """The same before a run, for pools that the rates may stand for; the intervals cover prompts and probabilities.

    Each replicate draws prompts with replacement and success probabilities behind their rates; its spread over the
    replicates is that of the estimate, since each is as large as the data (or smaller, which widens the interval).
    """
    count = min(len(rates.prompt_ids), POOL)
    smaller = max(round(batch * count / len(rates.prompt_ids)), 1)
    steps = min(PASSES * (count // smaller), LONGEST)
    found = []
    for replicate in range(REPLICATES):
        rows = np.random.default_rng([seed, replicate, 23]).integers(0, len(rates.prompt_ids), count)
        p = rates.probabilities(seed + replicate)[rows]
        ids = tuple(f"q{i}" for i in range(count))
        world = PromptPool(ids, p, batch=smaller, group_size=group_size, epochs=-(-steps * smaller // count))
        one = saving(world, PromptSet(ids), setting, settings, seeds=(replicate,), resamples=2)
        if isinstance(one, str):
            return one
        found.append(one)
    changes: dict[str, Any] = {"steps": sum(one.steps for one in found)}
    for name in ("groups", "group_size", "uniform_groups", "uniform_group_size", "dead", "uniform_dead"):
        changes[name] = float(np.mean([getattr(one, name) for one in found]))
    for name in ("avoided", "rollouts", "by_choice"):
        changes[name] = _spread([getattr(one, name).estimate for one in found])
    return dataclasses.replace(found[0], **changes)


def _spread(values: Sequence[float], level: float = 0.95) -> Interval:
    """The mean of bootstrap replicates, and the estimate's interval by their spread."""
    mean, half = float(np.mean(values)), float(np.std(values, ddof=1) * student.ppf((1 + level) / 2, len(values) - 1))
    return Interval(mean, mean - half, mean + half, level)


def saving_lines(found: Saving | str) -> list[str]:
    """The finding in a sentence, and what it rests on in another."""
    if isinstance(found, str):
        return [f"Selection: not told, {found}."]
    rests = f"Played over {found.steps:,} steps with known success rates, the allocator's learning included."
    if found.basis == "recorded":
        rests = (
            f"By recorded groups alone: {found.candidates} steps in a row offered as one, {found.steps:,} times. What "
            "the policy would have learnt from other prompts a log cannot tell."
        )
    more = found.groups / found.uniform_groups
    alone = f", or for {_share(found.by_choice)} if uniform had that number of prompts too" if more != 1.0 else ""
    return [
        f"Selection ({found.selection}, {found.candidates} candidates a prompt) at the same rollouts: {more:.2f} times "
        f"as many prompts with {found.group_size:.3g} rollouts each in place of {found.uniform_group_size:.3g}; "
        f"{_percent(found.dead)} of the groups dead in place of {_percent(found.uniform_dead)} (a share of "
        f"{_share(found.avoided)} avoided); as many live groups for {_share(found.rollouts)} of the rollouts{alone}.",
        rests,
    ]


def saving_data(found: Saving | str | None) -> dict[str, Any] | str | None:
    """The same as plain data."""
    return dataclasses.asdict(found) if isinstance(found, Saving) else found


def _percent(value: float) -> str:
    return f"{100 * value:.0f}%" if np.isfinite(value) else "?"


def _share(interval: Interval) -> str:
    if not np.isfinite(interval.high - interval.low):
        return f"{_percent(interval.estimate)} (too few steps for an interval)"
    return f"{_percent(interval.estimate)} [{100 * interval.low:.0f} to {100 * interval.high:.0f}%]"


def _allocator(prompts: PromptSet, setting: Setting, settings: AllocationSettings) -> RolloutAllocator:
    return RolloutAllocator(
        predictor_over(prompts, settings.predictor),
        setting.model,
        min_group_size=setting.min_group_size,
        max_group_size=setting.max_group_size,
        selection=build_selection(settings),
        candidates=settings.candidates,
    )


def _simulated(
    world: PromptPool | DriftingPrompts, offered: int, setting: Setting, allocator: RolloutAllocator, seed: int
) -> Iterator[Row]:
    names = np.array(world.prompt_ids, dtype=object)
    # an epoch may hold a step less of the wider batches
    for step, wide in zip(world.run(seed), world.offering(offered).run(seed), strict=False):
        equal = uniform_sizes(len(step), step.budget, setting)
        step.learn(equal)
        plan = allocator.select(names[wide.rows].tolist(), wide.budget)
        sizes = np.zeros(len(wide), dtype=np.int64)
        sizes[plan.kept] = plan.group_sizes
        successes, _ = wide.learn(sizes)
        _observe(allocator, plan, successes[plan.kept])
        live = float(wide.live(sizes.astype(np.float64))[plan.kept].sum())
        any_other = _uniform_live(wide.live, len(wide), len(plan), plan.budget, setting)
        uniform = float(step.live(equal.astype(np.float64)).sum())
        yield step.budget, len(step), uniform, len(plan), live, any_other


def _windows(log: VisitLog, count: int, least: int) -> Iterator[IntArray]:
    """The visits of every ``count`` recorded steps in a row, each prompt's first that has the rollouts of a group."""
    offsets = log.offsets[::count]
    for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        visits = start + np.flatnonzero(log.rollouts[start:stop] >= least)
        _, first = np.unique(log.rows[visits], return_index=True)
        if len(first) >= count:
            yield visits[np.sort(first)]


def _recorded(
    world: RecordedLog,
    windows: Sequence[IntArray],
    offered: int,
    setting: Setting,
    allocator: RolloutAllocator,
    seed: int,
) -> Iterator[Row]:
    names, draws = np.array(world.prompt_ids, dtype=object), np.random.default_rng([seed, 31])
    mean = world.log.mean_group_size if world.budget is None else world.budget
    mean = min(max(mean, setting.min_group_size), setting.max_group_size)
    for visits in windows:
        n, k = world.log.rollouts[visits], np.rint(world.log.successes[visits]).astype(np.int64)
        groups = round(len(visits) / offered)
        plan = allocator.select(names[world.log.rows[visits]].tolist(), round(mean * groups))
        own_n, own_k = n[plan.kept], k[plan.kept]
        _observe(allocator, plan, draws.hypergeometric(own_k, own_n - own_k, plan.group_sizes))
        live = float(_alive(own_k, own_n, plan.group_sizes).sum())
        uniform, any_other = (
            _uniform_live(partial(_alive, k, n), len(n), count, plan.budget, setting) for count in (groups, len(plan))
        )
        yield plan.budget, groups, uniform, len(plan), live, any_other


def _uniform_live(
    alive: Callable[..., FloatArray], candidates: int, groups: int, budget: int, setting: Setting
) -> float:
    """Expected live groups where so many of the candidates are drawn uniformly and share the budget equally."""
    sizes, times = np.unique(uniform_sizes(groups, budget, setting), return_counts=True)
    return float(sum(many * alive(np.full(candidates, n)).mean() for n, many in zip(sizes, times, strict=True)))


def _observe(allocator: RolloutAllocator, plan: Plan, successes: FloatArray | IntArray) -> None:
    """Hand over groups with so many successes."""
    place = np.arange(plan.budget) - np.repeat(np.cumsum(plan.group_sizes) - plan.group_sizes, plan.group_sizes)
    allocator.observe(plan, (place < np.repeat(successes, plan.group_sizes)).astype(np.float64))


def _alive(k: IntArray, n: IntArray, size: IntArray) -> FloatArray:
    """(V,) chance that so many of a visit's n recorded rollouts, k of them successes, have both outcomes."""

    def alike(count: IntArray) -> FloatArray:
        within = np.maximum(count - size, 0)
        logs = gammaln(count + 1) - gammaln(within + 1) + gammaln(n - size + 1) - gammaln(n + 1)
        return np.where(count >= size, np.exp(logs), 0.0)

    return np.asarray(1.0 - alike(k) - alike(n - k), dtype=np.float64)


def _summarise(runs: Sequence[FloatArray], basis: str, settings: AllocationSettings, resamples: int) -> Saving:
    bootstrap = PairedBootstrap([len(rows) for rows in runs], resamples=resamples)
    rollouts, equal, equal_live, kept, live, any_other = ([rows[:, i] for rows in runs] for i in range(6))
    dead, dead_star = bootstrap.ratio([a - b for a, b in zip(kept, live, strict=True)], kept)
    uniform, uniform_star = bootstrap.ratio([a - b for a, b in zip(equal, equal_live, strict=True)], equal)
    spent, groups, uniform_groups = (float(np.concatenate(x).mean()) for x in (rollouts, kept, equal))
    with np.errstate(divide="ignore", invalid="ignore"):
        avoided = 1.0 - np.append(dead_star, dead) / np.append(uniform_star, uniform)
    return Saving(
        basis=basis,
        candidates=settings.candidates,
        selection=settings.selection,
        steps=sum(len(rows) for rows in runs),
        groups=groups,
        group_size=spent / groups,
        uniform_groups=uniform_groups,
        uniform_group_size=spent / uniform_groups,
        dead=dead,
        uniform_dead=uniform,
        avoided=bootstrap.interval(float(avoided[-1]), avoided[:-1]),
        rollouts=bootstrap.interval(*bootstrap.ratio(equal_live, live)),
        by_choice=bootstrap.interval(*bootstrap.ratio(any_other, live)),
    )
