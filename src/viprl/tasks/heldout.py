"""Held-out success rate of a model on a task: sampled at temperature one, and greedy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from viprl.errors import ConfigurationError, InvalidInputError

if TYPE_CHECKING:
    from datasets import Dataset

    from viprl.tasks.base import Task


@dataclass(frozen=True)
class HeldOut:
    """Success rates on held-out prompts.

    Attributes:
        prompt_ids: the N prompts.
        sampled: (N,) share of successes among the sampled rollouts whose reward is not missing; NaN where all are.
        greedy: (N,) 1.0 or 0.0 for the greedy answer; NaN where its reward is missing.
    """

    prompt_ids: tuple[str, ...]
    sampled: NDArray[np.float64]
    greedy: NDArray[np.float64]

    @property
    def sampled_rate(self) -> float:
        """Mean success rate of the sampled answers, in [0, 1]."""
        return float(np.nanmean(self.sampled))

    @property
    def greedy_rate(self) -> float:
        """Mean success rate of the greedy answers, in [0, 1]."""
        return float(np.nanmean(self.greedy))


def evaluate_heldout(
    model: Any,
    tokenizer: Any,
    task: Task,
    *,
    samples: int = 4,
    batch_size: int = 256,
    seed: int = 0,
    dataset: Dataset | None = None,
    max_completion_length: int | None = None,
) -> HeldOut:
    """Generate for every held-out prompt and grade with the task's reward.

    The random state is restored afterwards, so that evaluating during training does not change the training.

    Args:
        samples: rollouts a prompt at temperature 1, without top-k or top-p.
        batch_size: rollouts generated together.
        dataset: other prompts with the task's columns; default the task's test set.

    Raises:
        InvalidInputError: ``samples`` or ``batch_size`` is not positive.
        ConfigurationError: a chat task, but the tokenizer has no chat template.
    """
    if samples < 1 or batch_size < 1:
        raise InvalidInputError(f"samples, batch_size >= 1 must hold, but got {samples}, {batch_size}")
    rows = [dict(row) for row in (task.test_dataset() if dataset is None else dataset)]
    length = max_completion_length or task.max_completion_length
    with _frozen(model, seed):
        sampled = _rewards(model, tokenizer, task, rows, samples, batch_size, length, greedy=False)
        greedy = _rewards(model, tokenizer, task, rows, 1, batch_size, length, greedy=True)
    return HeldOut(
        tuple(str(row["prompt_id"]) for row in rows),
        _success(sampled, task.success_threshold),
        _success(greedy, task.success_threshold),
    )


def render(tokenizer: Any, prompt: Any) -> str:
    """The string a model continues: the prompt itself, or its chat messages through the tokenizer's template."""
    if isinstance(prompt, str):
        return prompt
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigurationError(
            "a task with chat prompts needs a tokenizer with a chat template, but this tokenizer has none"
        )
    return str(tokenizer.apply_chat_template(list(prompt), tokenize=False, add_generation_prompt=True))


def _rewards(
    model: Any,
    tokenizer: Any,
    task: Task,
    rows: list[dict[str, Any]],
    samples: int,
    batch_size: int,
    length: int,
    *,
    greedy: bool,
) -> NDArray[np.float64]:
    """(N, samples) rewards, NaN where missing."""
    repeated = [row for row in rows for _ in range(samples)]
    rewards: list[float] = []
    for start in range(0, len(repeated), batch_size):
        batch = repeated[start : start + batch_size]
        completions = task.complete(model, tokenizer, batch, length=length, greedy=greedy)
        if completions is None:
            completions = _generate(model, tokenizer, [row["prompt"] for row in batch], length, greedy)
            if task.chat:
                completions = [[{"role": "assistant", "content": text}] for text in completions]
        columns: Mapping[str, list[Any]] = {key: [row[key] for row in batch] for key in batch[0] if key != "prompt"}
        graded = task.reward([row["prompt"] for row in batch], completions, **columns)
        rewards.extend(float("nan") if reward is None else float(reward) for reward in graded)
    return np.asarray(rewards).reshape(len(rows), samples)


def _generate(model: Any, tokenizer: Any, prompts: list[Any], length: int, greedy: bool) -> list[str]:
    import torch

    texts = [render(tokenizer, prompt) for prompt in prompts]
    chat = not isinstance(prompts[0], str)
    encoded = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=not chat).to(
        model.device
    )
    sampling = {"do_sample": False} if greedy else {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    with torch.no_grad():
        output = model.generate(
            input_ids=encoded["input_ids"],
            attention_mask=encoded["attention_mask"],
            max_new_tokens=length,
            pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            **sampling,
        )
    new = output[:, encoded["input_ids"].shape[1] :]
    return list(tokenizer.batch_decode(new, skip_special_tokens=True))


@contextlib.contextmanager
def _frozen(model: Any, seed: int) -> Iterator[None]:
    """Evaluation mode and a fixed seed; both are put back."""
    import torch

    training = model.training
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        model.eval()
        try:
            yield
        finally:
            model.train(training)


def _success(rewards: NDArray[np.float64], threshold: float) -> NDArray[np.float64]:
    present = ~np.isnan(rewards)
    count = present.sum(axis=1)
    hits = (np.where(present, rewards, -np.inf) >= threshold).sum(axis=1)
    rate: NDArray[np.float64] = np.where(count > 0, hits / np.maximum(count, 1), np.nan)
    return rate
