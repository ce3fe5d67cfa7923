"""A task that remembers what the model said, so that any held-out evaluation also yields its completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class RecordedTask:
    """Wraps a verifiable task; everything is passed on, and graded completions are kept.

    Attributes:
        rows: one dict a completion: prompt_id, completion, correct (None where the reward is missing) and, where the
            task has it, gold.
    """

    def __init__(self, task: Any) -> None:
        self._task = task
        self.rows: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def reward(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """The task's rewards."""
        rewards: list[float | None] = self._task.reward(prompts, completions, **columns)
        golds = columns.get("answer", [None] * len(rewards))
        for prompt_id, completion, gold, reward in zip(columns["prompt_id"], completions, golds, rewards, strict=True):
            text = completion if isinstance(completion, str) else completion[-1]["content"]
            correct = None if reward is None else float(reward >= self._task.success_threshold)
            self.rows.append(
                {"prompt_id": str(prompt_id), "completion": text, "correct": correct, "gold": gold, "reward": reward}
            )
        return rewards
