"""A saved allocator against the one that takes its state."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from viprl.errors import CheckpointError
from viprl.prediction.base import Predictor, PromptId

logger = logging.getLogger("viprl")


@dataclass(frozen=True)
class RestoreReport:
    """Prompt ids of a checkpoint against the predictor's own: ``new`` start cold, ``gone`` are dropped."""

    new: tuple[PromptId, ...]
    gone: tuple[PromptId, ...]
    kept: tuple[PromptId, ...]


def check_settings(state: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """The saved settings must be these; reward values may be unknown on either side.

    Raises:
        CheckpointError: they differ.
    """
    values = state["reward_values"]
    saved = {**state["settings"], "reward_values": None if values is None else tuple(values)}
    unknown = now["reward_values"] is None or saved["reward_values"] is None
    wanted = {name: value for name, value in now.items() if not (unknown and name == "reward_values")}
    differ = {name: (saved.get(name), value) for name, value in wanted.items() if saved.get(name) != value}
    if differ:
        raise CheckpointError(
            "the checkpoint's settings must be the allocator's, but (saved, now) differ in "
            + ", ".join(f"{name}: {pair}" for name, pair in differ.items())
        )


def restore_predictor(predictor: Predictor, state: dict[str, Any]) -> RestoreReport | None:
    """Hand a predictor its state; what changed in the prompt set, None where it cannot tell."""
    merged = predictor.merge_state(state)
    if merged is None:
        return None
    report = RestoreReport(**{name: tuple(ids) for name, ids in merged.items()})
    if report.new or report.gone:
        logger.warning(
            "the prompt set changed since the checkpoint: %d new, %d gone, %d kept",
            len(report.new), len(report.gone), len(report.kept),
        )  # fmt: skip
    return report
