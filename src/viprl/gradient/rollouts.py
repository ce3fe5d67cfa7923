"""Sampling rollouts from a Transformers model at temperature 1, the policy whose gradient is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Reward = Callable[[int, list[str]], Sequence[float]]
"""(position of the prompt, completions as text) -> rewards."""


@dataclass(frozen=True)
class PromptRollouts:
    """N rollouts of one prompt. Equal completions are kept once: their gradients are equal.

    Attributes:
        prompt: (P,) token ids.
        unique: the distinct completions' token ids, with the end-of-sequence token where it was sampled.
        index: (N,) which distinct completion each rollout is.
        rewards: (N,).
    """

    prompt: list[int]
    unique: list[list[int]]
    index: list[int]
    rewards: list[float]

    def lengths(self) -> list[int]:
        """(N,) tokens of each rollout."""
        return [len(self.unique[i]) for i in self.index]


def encode_prompt(tokenizer: Any, prompt: Any) -> list[int]:
    """Token ids of a prompt: a string, or a list of chat messages (by the tokenizer's template)."""
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    text = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


@torch.no_grad()
def sample(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Any],
    reward: Reward,
    *,
    rollouts: int,
    max_new_tokens: int,
    batch_rows: int = 64,
) -> list[PromptRollouts]:
    """``rollouts`` completions of each prompt, ``batch_rows`` at a time; plain sampling, no top-k or top-p."""
    encoded = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    rows = [q for q in range(len(encoded)) for _ in range(rollouts)]
    completions: list[list[int]] = []
    for start in range(0, len(rows), batch_rows):
        part = [encoded[q] for q in rows[start : start + batch_rows]]
        completions += _generate(model, tokenizer, part, max_new_tokens)
    result = []
    for q, tokens in enumerate(encoded):
        own = completions[q * rollouts : (q + 1) * rollouts]
        texts = tokenizer.batch_decode(own, skip_special_tokens=True)
        unique = list(dict.fromkeys(map(tuple, own)))
        where = {c: i for i, c in enumerate(unique)}
        result.append(
            PromptRollouts(
                prompt=tokens,
                unique=[list(c) for c in unique],
                index=[where[tuple(c)] for c in own],
                rewards=[float(r) for r in reward(q, texts)],
            )
        )
    return result


def _generate(model: Any, tokenizer: Any, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
    width = max(map(len, prompts))
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    output = model.generate(
        input_ids=ids,
        attention_mask=mask,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        repetition_penalty=1.0,
        max_new_tokens=max_new_tokens,
        pad_token_id=pad,
        eos_token_id=tokenizer.eos_token_id,
    )
    return [_until_end(row, tokenizer.eos_token_id) for row in output[:, width:].tolist()]


def _until_end(tokens: list[int], end: int) -> list[int]:
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


def log_probabilities(model: Any, prompt: list[int], completions: Sequence[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Teacher-forced pass over completions of one prompt.

    Returns:
        (C, T) log-probabilities of the sampled tokens (0 where padded), (C, T, V) log-probabilities of all tokens, and
        the mask (C, T).
    """
    longest = max(map(len, completions))
    ids = torch.tensor([prompt + c + [0] * (longest - len(c)) for c in completions], device=model.device)
    mask = torch.tensor([[1.0] * len(c) + [0.0] * (longest - len(c)) for c in completions], device=model.device)
    attention = torch.cat([mask.new_ones(len(completions), len(prompt)), mask], 1).long()
    positions = torch.arange(ids.shape[1], device=model.device).expand(len(ids), -1)
    logits = model(input_ids=ids, attention_mask=attention, position_ids=positions, use_cache=False).logits
    every = torch.log_softmax(logits[:, len(prompt) - 1 : -1].float(), -1)
    chosen = every.gather(-1, ids[:, len(prompt) :, None])[..., 0] * mask
    return chosen, every, mask
