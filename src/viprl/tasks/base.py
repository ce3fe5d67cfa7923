"""What a verifiable task is: prompts with stable ids, a reward in TRL's signature, held-out prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from viprl.errors import ConfigurationError, InvalidInputError

if TYPE_CHECKING:
    from pathlib import Path

    from datasets import Dataset

PROMPT_COLUMNS = ("prompt", "prompt_id", "answer")
Message = Mapping[str, str]


class Task:
    """A verifiable task.

    Subclasses give two data sets with at least the columns ``prompt``, ``prompt_id`` and ``answer`` and a ``reward``.
    ``prompt`` is a string, or a list of chat messages where ``chat`` is True.

    Attributes:
        name: what a configuration file calls it.
        chat: prompts are chat messages (the model's tokenizer must have a chat template).
        max_completion_length: tokens that an answer needs, at most; the default of a training run.
        success_threshold: a rollout counts as a success from this reward on (for the held-out success rate).
    """

    name: str = ""
    chat: bool = False
    max_completion_length: int = 256
    success_threshold: float = 1.0

    def train_dataset(self) -> Dataset:
        """The prompts to train on: ``datasets.Dataset`` with the columns of ``PROMPT_COLUMNS``."""
        raise NotImplementedError

    def test_dataset(self) -> Dataset:
        """Held-out prompts, disjoint from the training prompts, with the same columns."""
        raise NotImplementedError

    def reward(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """One reward for each completion; None where the verifier cannot tell (a missing reward, not a zero).

        ``columns`` holds the data set's other columns, one value for each completion (TRL's signature).
        """
        raise NotImplementedError

    def trainer_options(self, tokenizer: Any) -> dict[str, Any]:
        """More keyword arguments for the trainer, such as tools; none by default."""
        return {}

    def complete(
        self, model: Any, tokenizer: Any, rows: Sequence[Mapping[str, Any]], *, length: int, greedy: bool
    ) -> list[Any] | None:
        """One completion for each row, for tasks whose rollouts are more than one generation; None = the usual way."""
        return None

    def texts(self, dataset: Dataset) -> list[str]:
        """The text of each prompt, for embeddings: what the user asks, without the chat wrapper."""
        return [prompt_text(prompt) for prompt in dataset["prompt"]]

    def build_model(self, cache_dir: Path | None = None, *, seed: int = 0, log: Any = None) -> tuple[Any, Any]:
        """(model, tokenizer) of ``model: tiny``, for tasks that bring a model of their own.

        Raises:
            ConfigurationError: this task has none.
        """
        raise ConfigurationError(
            f"`model: tiny` needs a task that brings its own model (arithmetic), but got task {self.name!r}"
        )


def completion_text(completion: Any) -> str:
    """The text of a completion: a string, or the last assistant message of a list of chat messages."""
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Sequence) and completion and isinstance(completion[-1], Mapping):
        return str(completion[-1].get("content") or "")
    raise InvalidInputError(f"a completion must be a string or a list of chat messages, but got {completion!r}")


def prompt_text(prompt: Any) -> str:
    """The text of a prompt: the string itself, or its last user message."""
    if isinstance(prompt, str):
        return prompt
    users = [m for m in prompt if m.get("role") == "user"]
    if not users:
        raise InvalidInputError(f"a chat prompt must have a user message, but got {prompt!r}")
    return str(users[-1]["content"])


def check_positive(**values: int) -> None:
    """Raises InvalidInputError for the first value that is not a positive integer."""
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InvalidInputError(f"`{name}` must be a positive integer, but got {value!r}")
