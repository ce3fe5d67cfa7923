"""Logs with one row a rollout, gathered into visits. What the readers of trainers' dumps share.

A group is the rollouts of one prompt in one step; its identity is the reader's business, its prompt_id is the content
hash of the prompt's text (the rule of ``viprl.prompts``), or what the table says it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from viprl._arrays import FloatArray, IntArray
from viprl.prompts import content_hash, plain_text
from viprl.replay.log import VisitLog
from viprl.replay.readers.report import LogFormatError, ReadReport

KNOWN_VALUES = ((0.0, 1.0), (-1.0, 1.0))
MOST_VALUES_SHOWN = 6


@dataclass
class RolloutTable:
    """Rollouts as they are read: step, group, prompt and reward."""

    steps: list[int] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    prompts: list[str] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    _group_rows: dict[Hashable, int] = field(default_factory=dict)
    _hashes: dict[str, str] = field(default_factory=dict)

    def add(self, step: int, group: Hashable, prompt: Any, reward: float) -> None:
        """One rollout with a reward, of the prompt with this text or conversation."""
        prompt_id = self.hash_of(prompt)
        if prompt_id not in self.texts:
            self.texts[prompt_id] = plain_text(prompt)
        self.add_named(step, group, prompt_id, reward)

    def add_named(self, step: int, group: Hashable, prompt_id: str, reward: float) -> None:
        """One rollout with a reward, of the prompt with this id."""
        self.steps.append(step)
        self.groups.append(self._group_rows.setdefault((step, group), len(self._group_rows)))
        self.prompts.append(prompt_id)
        self.rewards.append(reward)

    def hash_of(self, prompt: Any) -> str:
        """The prompt_id of a prompt text or conversation, computed once for each text."""
        if not isinstance(prompt, str):
            return content_hash(prompt)
        known = self._hashes.get(prompt)
        if known is None:
            known = self._hashes[prompt] = content_hash(prompt)
        return known

    def visits(
        self,
        report: ReadReport,
        *,
        success_at: float | None = None,
        all_prompts: Sequence[str] | None = None,
    ) -> VisitLog:
        """One visit for each group.

        Args:
            success_at: rewards at least this large are successes; by default rewards must be {0, 1} or {-1, 1}. Where
                they have more than two values the log keeps their means and variances: these are what was trained.

        Raises:
            LogFormatError: no rollouts, or rewards that are neither and no ``success_at``.
        """
        report.finish()
        if not self.rewards:
            raise LogFormatError(
                f"a log must have at least one rollout with a reward, but {report.rows} rows gave none"
            )
        reward = np.array(self.rewards)
        hit = binary_rewards(reward) if success_at is None else (reward >= success_at).astype(np.float64)
        group = np.array(self.groups)
        first = np.unique(group, return_index=True)[1]
        report.kept = len(reward)
        report.texts |= self.texts
        names = np.array(self.prompts, dtype=object)[first]
        return VisitLog.build(
            np.array(self.steps)[first],
            names,
            np.bincount(group, hit),
            np.bincount(group),
            all_prompts=all_prompts,
            **(_moments(reward, group) if len(np.unique(reward)) > 2 else {}),
        )


def _moments(reward: FloatArray, group: IntArray) -> dict[str, FloatArray]:
    """Mean and unbiased variance of each group's rewards."""
    n = np.bincount(group)
    means = np.bincount(group, reward) / n
    squares = np.bincount(group, np.square(reward - means[group]))
    return {"means": means, "variances": np.divide(squares, n - 1, out=np.full(len(n), np.nan), where=n > 1)}


def binary_rewards(reward: FloatArray) -> FloatArray:
    """Rewards in {0, 1} or {-1, 1} as successes in {0, 1}.

    Raises:
        LogFormatError: other values.
    """
    values = np.unique(reward)
    for low, high in KNOWN_VALUES:
        if np.isin(values, (low, high)).all():
            return np.asarray(reward == high, dtype=np.float64)
    shown = ", ".join(f"{v:g}" for v in values[:MOST_VALUES_SHOWN]) + (
        ", ..." if len(values) > MOST_VALUES_SHOWN else ""
    )
    raise LogFormatError(
        f"rewards must be {{0, 1}} or {{-1, 1}}, but got {len(values)} values ({shown}); "
        "say from which reward on a rollout is a success: --success-at X"
    )
