"""One plan for a file of prompts, from a recorded history of outcomes: what ``viprl allocate`` prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from viprl.build import build_allocator
from viprl.embeddings.files import read_vectors
from viprl.errors import ConfigurationError, InvalidInputError
from viprl.plan import Plan
from viprl.prompts import PromptSet
from viprl.prompts.files import read_prompts
from viprl.replay.readers import ReadReport, read_log, read_rates
from viprl.replay.readers.report import OnError
from viprl.settings import AllocationSettings


def plan_for_file(
    path: Path,
    settings: AllocationSettings,
    *,
    history: Path | None = None,
    columns: dict[str, str] | None = None,
    on_error: OnError = "stop",
    text_column: str | None = None,
    embeddings: Path | None = None,
    rates: Path | None = None,
    say: Callable[[str], None] = lambda sentence: None,
) -> Plan:
    """Read prompts and history, learn step by step, allocate ``settings.budget``.

    Args:
        path: prompts, as ``viprl.prompts.files`` reads them; every prompt gets a group, or with
            ``candidates`` above 1 those that are worth it.
        settings: with ``budget``. The guard plays no part: this is one plan for a user to judge.
        history: outcomes, as ``viprl replay`` reads them; None is a start from nothing.
        columns: names of the history's columns where they are others.
        on_error: "stop" or "skip", what a malformed row of the history does.
        text_column: of the prompts file.
        embeddings: a file of vectors.
        rates: success rates of this model before the run, as ``viprl forecast`` reads them; the prompts start there.
        say: takes what the user should know, sentence by sentence.

    Raises:
        ConfigurationError, InvalidInputError: settings or files break a rule.
    """
    found = read_prompts(
        path,
        text_column=text_column,
        id_column=settings.prompt_id_column,
        side_information=settings.side_information,
        initial_rates=settings.initial_rates,
    )
    for note in found.notes():
        say(note)
    prompts = found.named.prompts
    budget = settings.budget
    if budget is None:
        raise ConfigurationError("`budget` must say how many rollouts to divide, but got None")
    settings = settings.for_step(max(1, len(prompts) // settings.candidates), budget)
    if embeddings is not None:
        vectors = read_vectors(embeddings, prompts.ids, found.named.first_rows, len(found.rows))
        prompts = dataclasses.replace(prompts, embeddings=vectors)
    if rates is not None:
        prompts = _with_rates(prompts, rates, on_error, say)
    allocator = build_allocator(prompts, settings.replace(guard=False))
    if history is not None:
        _learn(allocator.predictor, history, columns or {}, on_error, prompts.ids, path, say)
    choose = allocator.select if settings.candidates > 1 else allocator.allocate
    return choose(list(prompts.ids), budget)


def _with_rates(prompts: PromptSet, path: Path, on_error: OnError, say: Callable[[str], None]) -> PromptSet:
    report = ReadReport("rates", on_error)
    told = read_rates(path, report)
    for line in report.lines():
        say(line)
    if told.rollouts is None:
        raise InvalidInputError(
            f"{path} must say how many rollouts are behind its rates (successes and n_rollouts), which weigh them, "
            "but has rates alone"
        )
    known = {prompt_id: row for row, prompt_id in enumerate(told.prompt_ids)}
    rows = [known.get(prompt_id, -1) for prompt_id in prompts.ids]
    if not any(row >= 0 for row in rows):
        raise InvalidInputError(
            f"{path} must know some of the prompts, but no id is in both (rates: {told.prompt_ids[0]!r}, prompts: "
            f"{prompts.ids[0]!r})"
        )
    say(f"{sum(row >= 0 for row in rows)} of {len(rows)} prompts start from the rates of {path}")
    rate = np.array([told.rate[row] if row >= 0 else np.nan for row in rows])
    behind = np.array([told.rollouts[row] if row >= 0 else 0 for row in rows], dtype=np.float64)
    return dataclasses.replace(prompts, initial_rates=rate, initial_rollouts=behind)


def _learn(
    predictor: Any,
    history: Path,
    columns: dict[str, str],
    on_error: OnError,
    ids: Sequence[str],
    prompts_path: Path,
    say: Callable[[str], None],
) -> None:
    known = set(ids)
    log, report = read_log(history, on_error=on_error, columns=columns)
    if log.rewards == "real" and predictor.reward_kind != "real":
        raise ConfigurationError(
            f"{history} has real rewards and names no success, so the predictor must be reward_variance; or log the "
            "successes (the trainers' success_reward)"
        )
    foreign: set[str] = set()
    for start, end in zip(log.offsets[:-1], log.offsets[1:], strict=True):
        step = [log.prompt_ids[row] for row in log.rows[start:end]]
        keep = [i for i, prompt_id in enumerate(step) if prompt_id in known]
        foreign.update(prompt_id for prompt_id in step if prompt_id not in known)
        if keep:
            known_ids, rows, rollouts = [step[i] for i in keep], np.arange(start, end)[keep], log.rollouts
            if predictor.reward_kind == "real" and log.means is not None and log.variances is not None:
                predictor.observe_rewards(known_ids, log.means[rows], log.variances[rows], rollouts[rows])
            else:
                predictor.observe(known_ids, log.successes[rows], rollouts[rows].astype(float))
    for line in report.lines():
        say(line)
    if foreign:
        say(
            f"{len(foreign)} prompts of the history are not in {prompts_path} and taught nothing (first: "
            f"{min(foreign)!r})"
        )
