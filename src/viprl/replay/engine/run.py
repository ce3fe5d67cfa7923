"""Replay one rule on one run of a world."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from viprl._arrays import IntArray
from viprl.replay.engine.trace import Recorder, Trace
from viprl.replay.rules.base import Rule, Setting
from viprl.replay.worlds.base import Step, World


def replay(
    world: World,
    rule: Rule,
    setting: Setting,
    *,
    seed: int = 0,
    on_step: Callable[[], None] | None = None,
) -> Trace:
    """For each step: predict, decide, score, learn.

    Args:
        world: the protocol.
        rule: a fresh rule; it is changed.
        setting: variance model and bounds.
        seed: of the world's random numbers; a rule with random numbers of its own has its own seed.
        on_step: called after each step, for a progress bar.

    Returns:
        The trace. The same world, rule, setting and seed give the same trace, apart from ``seconds``.
    """
    recorder = Recorder(rule.name, seed, len(world.prompt_ids), setting)
    names = np.array(world.prompt_ids, dtype=object)
    for step in world.run(seed):
        own = len(step)
        ids = names[step.rows].tolist()
        start = time.perf_counter()
        prediction = rule.predict(ids)
        sizes = np.asarray(rule.decide(step, ids, prediction, setting), dtype=np.int64)
        thinking = time.perf_counter() - start
        if len(step) > own:
            ids = names[step.rows].tolist()
        learn, outcomes = _outcomes(world, rule, step, sizes)
        start = time.perf_counter()
        learn(ids, *outcomes)
        thinking += time.perf_counter() - start
        recorder.add(step, own, None if rule.reads_rewards else prediction, sizes, thinking)
        if on_step is not None:
            on_step()
    trace = recorder.trace
    trace.steps = {name: np.asarray(values) for name, values in trace.steps.items()}
    trace.losses = {
        kind: {name: np.asarray(values) for name, values in columns.items()} for kind, columns in trace.losses.items()
    }
    trace.finished = True
    return trace


def _outcomes(world: World, rule: Rule, step: Step, sizes: IntArray) -> tuple[Callable[..., None], tuple[Any, ...]]:
    """How the rule learns, and what."""
    if rule.reads_rewards and world.rewards != "binary":
        return rule.learn_rewards, step.learn_rewards(sizes)
    return rule.learn, step.learn(sizes)
