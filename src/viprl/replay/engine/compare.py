"""Replay many rules and seeds in parallel; finished ones survive an interruption.

A task is one rule on one seed. Workers are processes; every finished trace is written to the results folder at once,
under a name that fixes rule, seed and everything it depends on, so a second call picks it up.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from viprl.errors import InvalidInputError
from viprl.prompts import PromptSet
from viprl.replay.engine.run import replay
from viprl.replay.engine.store import load_trace, save_trace
from viprl.replay.engine.trace import Trace
from viprl.replay.engine.workers import WorkerPool
from viprl.replay.lineup import build_rule, parse_rule
from viprl.replay.rules import Setting
from viprl.replay.worlds import World

SLOW = ("gp", "ridge", "guard", "calibrated")
Progress = Callable[[int, int, str], None]  # steps done, steps in all, what has just finished


@dataclass
class Comparison:
    """What a comparison produced.

    Attributes:
        traces: (rule, seed) -> trace, finished ones only.
        rules, seeds: what was asked for.
        interrupted: True where some tasks were not run to their end.
        failures: rule -> message, where a rule could not run.
    """

    rules: list[str]
    seeds: list[int]
    traces: dict[tuple[str, int], Trace] = field(default_factory=dict)
    interrupted: bool = False
    failures: dict[str, str] = field(default_factory=dict)


def compare(
    world: World,
    rules: Sequence[str],
    prompts: PromptSet,
    setting: Setting,
    *,
    seeds: Sequence[int] = (0,),
    jobs: int | None = None,
    folder: str | Path | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Replay every rule on every seed.

    Args:
        world: the protocol; must be picklable where processes are not forked.
        rules: names, see ``lineup``.
        prompts: what predictors may read.
        setting: variance model and bounds.
        seeds: of the world and of rules that draw.
        jobs: processes; by default the cores this process may use. 1 runs everything here.
        folder: finished traces are kept here and picked up again; None keeps none.
        progress: called from time to time.

    Returns:
        The traces. Ctrl-C gives the finished ones with ``interrupted`` set. Independent of ``jobs``.

    Raises:
        ConfigurationError: an unknown rule, or one that needs embeddings that are not there.
        InvalidInputError: no rules or no seeds, or a world and prompts that differ.
    """
    if not rules or not seeds:
        raise InvalidInputError("a comparison needs at least one rule and one seed")
    if tuple(world.prompt_ids) != tuple(prompts.ids):
        raise InvalidInputError("the world and the prompts must have the same ids in the same order")
    names = list(dict.fromkeys(parse_rule(rule).text for rule in rules))
    result = Comparison(names, list(dict.fromkeys(seeds)))
    for name in names:
        build_rule(parse_rule(name), prompts, setting, result.seeds[0])  # a wrong name fails now, not after a minute
    store = None if folder is None else Path(folder)
    key = "" if store is None else _fingerprint(world, prompts, setting)
    tasks = []
    for task in ((name, seed) for name in names for seed in result.seeds):
        kept = None if store is None else load_trace(_path(store, *task, key))
        if kept is None:
            tasks.append(task)
        else:
            result.traces[task] = kept
    count = min(jobs or _cores(), max(len(tasks), 1))
    total = len(tasks) * world.n_steps
    arguments = (world, prompts, setting)

    def keep(task: tuple[str, int], trace: Trace) -> None:
        result.traces[task] = trace
        if store is not None:
            save_trace(_path(store, *task, key), trace)

    try:
        if count == 1:
            _run_here(tasks, arguments, keep, progress, total, result)
        else:
            _run_parallel(tasks, arguments, count, keep, progress, total, result)
    except KeyboardInterrupt:
        result.interrupted = True
    return result


def _run_here(
    tasks: list[tuple[str, int]],
    arguments: tuple[World, PromptSet, Setting],
    keep: Callable[[tuple[str, int], Trace], None],
    progress: Progress | None,
    total: int,
    result: Comparison,
) -> None:
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None and done % 20 == 0:
            progress(done, total, "")

    for position, task in enumerate(tasks):
        with _failure(result, task):
            keep(task, _replay_task(task, *arguments, step))
        done = (position + 1) * arguments[0].n_steps
        if progress is not None:
            progress(done, total, task[0])


def _run_parallel(
    tasks: list[tuple[str, int]],
    arguments: tuple[World, PromptSet, Setting],
    jobs: int,
    keep: Callable[[tuple[str, int], Trace], None],
    progress: Progress | None,
    total: int,
    result: Comparison,
) -> None:
    # slow rules first, so that no long task is left alone at the end
    waiting = sorted(tasks, key=lambda task: not any(word in task[0] for word in SLOW))
    with WorkerPool(jobs, partial(_work, *arguments)) as pool:
        for task, answer in pool.run(waiting):
            if isinstance(answer, Trace):
                keep(task, answer)
            elif answer is not None:
                result.failures[task[0]] = answer
            if progress is not None:
                progress(min(pool.counter.value, total), total, "" if answer is None else task[0])


def _work(
    world: World, prompts: PromptSet, setting: Setting, task: tuple[str, int], count: Callable[[], None]
) -> Trace:
    return _replay_task(task, world, prompts, setting, count)


@contextmanager
def _failure(result: Comparison, task: tuple[str, int]) -> Iterator[None]:
    """A rule that breaks is reported and does not take the others with it."""
    try:
        yield
    except Exception as error:
        result.failures[task[0]] = f"{type(error).__name__}: {error}"


def _replay_task(
    task: tuple[str, int], world: World, prompts: PromptSet, setting: Setting, step: Callable[[], None]
) -> Trace:
    name, seed = task
    logger = logging.getLogger("viprl")
    level = logger.level
    logger.setLevel(logging.ERROR)  # a trainer wants to hear of every guarded step; here they are figures
    try:
        return replay(world, build_rule(parse_rule(name), prompts, setting, seed), setting, seed=seed, on_step=step)
    finally:
        logger.setLevel(level)


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _path(folder: Path, rule: str, seed: int, key: str) -> Path:
    safe = "".join(c if c.isalnum() or c in "_-" else "-" for c in rule)
    return folder / f"{safe}.{seed}.{key}.npz"


def _deciding_files() -> list[Path]:
    """The source files that decide a trace: the method's and the replay's own, but not how it is read or shown."""
    root = Path(__file__).resolve().parents[2]
    core = ("allocator", "build", "settings", "registry", "plan", "selecting", "advantages", "_arrays", "_parts")
    own = ("lineup", "log", "engine/run", "engine/store", "engine/trace")
    found = [root / f"{name}.py" for name in (*core, *(f"replay/{name}" for name in own))]
    steps = ("prediction", "variance", "selection", "allocation", "feedback")
    for folder in (*steps, "prompts", "replay/rules", "replay/worlds"):
        found += (root / folder).rglob("*.py")
    return sorted(found)


def _fingerprint(world: World, prompts: PromptSet, setting: Setting) -> str:
    """Changes with anything that a trace depends on, but for the rule and the seed."""
    digest = hashlib.blake2b(digest_size=8)
    for path in _deciding_files():  # another version of their code is another result
        digest.update(path.read_bytes())
    facts = [world.describe(), repr(setting.model), setting.min_group_size, setting.max_group_size]
    digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    digest.update("\x00".join(prompts.ids).encode("utf-8", "surrogatepass"))
    log = getattr(world, "log", None)
    arrays = [getattr(world, "p", None), prompts.embeddings]
    arrays += [] if log is None else [log.rows, log.successes, log.rollouts, log.offsets, log.means, log.variances]
    for name in sorted(prompts.side_information):
        digest.update(name.encode())
        arrays.append(prompts.side_information[name])
    for array in arrays:
        if array is not None:
            digest.update(np.ascontiguousarray(array).tobytes())
    digest.update("\x00".join(prompts.read_texts() or ()).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
