"""A plain RLOO / Dr. GRPO training loop for the arithmetic model: one file, no trainer, every number visible.

Each step: the allocator plans group sizes, the model answers, advantages are computed on the ragged groups, one AdamW
step follows. With ``record_norms`` the squared norms of every rollout's gradient are read off the backward pass.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import viprl
from viprl.gradient.norm_hook import GradientNormHook
from viprl.gradient.proxies import proxies


@dataclass
class StepRecord:
    """One step: ids (B,), group sizes (B,), rewards and squared norms (C,) (NaN where the advantage was zero).

    ``proxies``: name -> (C,) stand-ins for the squared norm, of all rollouts (``record_proxies``).
    """

    prompt_ids: tuple[str, ...]
    group_sizes: np.ndarray
    rewards: np.ndarray
    squared_norms: np.ndarray
    seconds: dict[str, float] = field(default_factory=dict)
    proxies: dict[str, np.ndarray] = field(default_factory=dict)


class TinyRun:
    """Args: prompts and answers (N,) strings; ``weighting`` "equal" or "rollout" (how prompts weigh in the loss)."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        prompts: list[str],
        answers: list[str],
        *,
        allocator: viprl.RolloutAllocator,
        estimator: str = "rloo",
        weighting: str = "equal",
        learning_rate: float = 1e-4,
        warmup: int = 10,
        record_norms: bool = False,
        layers: Any = "all",
        record_proxies: bool = False,
    ) -> None:
        self.model, self.tokenizer, self.allocator = model, tokenizer, allocator
        self.estimator, self.weighting = estimator, weighting
        self.answers = dict(zip(prompts, answers, strict=True))
        self.encoded = {p: tokenizer(p)["input_ids"] for p in prompts}
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.0)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda s: min(1.0, (s + 1) / warmup))
        self.hook = GradientNormHook(model, layers=layers) if record_norms else None
        self.record_proxies = record_proxies

    def step(self, prompt_ids: list[str], budget: int) -> StepRecord:
        """One update; returns what happened."""
        marks = [time.process_time()]
        plan = self.allocator.allocate(prompt_ids, budget)
        marks.append(time.process_time())
        names = [prompt_ids[q] for q in plan.rows()]
        sequences, width = generate(self.model, self.tokenizer, [self.encoded[n] for n in names])
        texts = self.tokenizer.batch_decode(sequences[:, width:], skip_special_tokens=True)
        rewards = np.array([float(t == self.answers[n]) for n, t in zip(names, texts, strict=True)])
        marks.append(time.process_time())
        cheap = self._proxies(sequences, width) if self.record_proxies else {}
        norms = self._update(plan, rewards, sequences, width)
        marks.append(time.process_time())
        self.allocator.observe(plan, rewards, squared_norms=norms)
        marks.append(time.process_time())
        labels = ("allocate", "rollouts", "update", "observe")
        spent = {n: b - a for n, a, b in zip(labels, marks[:-1], marks[1:], strict=True)}
        return StepRecord(plan.prompt_ids, plan.group_sizes, rewards, norms, spent, cheap)

    @torch.no_grad()
    def _proxies(self, sequences: torch.Tensor, width: int) -> dict[str, np.ndarray]:
        chosen, every, mask = log_probabilities(self.model, self.tokenizer, sequences, width)
        found = {name: value.double().numpy() for name, value in proxies(chosen, every, mask).items()}
        found["chosen"] = ((1 - chosen.exp()).square() * mask).sum(1).double().numpy()  # needs no other token
        return found

    def _update(self, plan: viprl.Plan, rewards: np.ndarray, sequences: torch.Tensor, width: int) -> np.ndarray:
        weighting = "equal" if self.weighting == "equal" else "none"
        advantages = viprl.group_advantages(rewards, plan, self.estimator, prompt_weighting=weighting)
        weights = torch.tensor(np.asarray(advantages), dtype=torch.float32)
        norms = np.full(len(rewards), np.nan)
        live = torch.nonzero(weights).flatten()  # rollouts without advantage have no gradient
        self.optimizer.zero_grad()
        if len(live):
            # equal completions of a prompt share reward, advantage and gradient: one pass, their weights added
            rows, own = torch.unique(sequences[live], dim=0, return_inverse=True)
            added = torch.zeros(len(rows)).index_add_(0, own, weights[live])
            if self.hook is not None:
                self.hook.begin(added)
            sums = log_probability_sums(self.model, self.tokenizer, rows, width)
            (-(added * sums).sum() / len(weights)).backward()
            if self.hook is not None:
                norms[live.numpy()] = self.hook.collect()[own.numpy()] * len(weights) ** 2
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
        self.schedule.step()
        return norms


@torch.no_grad()
def generate(model: Any, tokenizer: Any, prompts: list[list[int]], new: int = 6) -> tuple[torch.Tensor, int]:
    """(C, W + new) sampled sequences, prompts padded on the left to W; every distinct prompt is read once."""
    pad, eos = tokenizer.pad_token_id, tokenizer.eos_token_id
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts])
    distinct, row = torch.unique(ids, dim=0, return_inverse=True)
    attention = (distinct != pad).long()
    model.eval()
    read = model(
        input_ids=distinct,
        attention_mask=attention,
        position_ids=(attention.cumsum(1) - 1).clamp(min=0),
        use_cache=True,
    )
    cache, logits, attention = read.past_key_values, read.logits[row, -1], attention[row]
    cache.batch_select_indices(row)
    out = torch.full((len(ids), width + new), pad)
    out[:, :width] = ids
    running = torch.ones(len(ids), dtype=torch.bool)
    for place in range(width, width + new):
        drawn = torch.multinomial(torch.softmax(logits.float(), -1), 1)[:, 0]
        out[running, place] = drawn[running]
        running &= drawn != eos
        if not running.any() or place == width + new - 1:
            break
        attention = torch.cat([attention, torch.ones(len(ids), 1, dtype=torch.long)], 1)
        logits = model(
            input_ids=drawn[:, None],
            attention_mask=attention,
            position_ids=attention.sum(1, keepdim=True) - 1,
            past_key_values=cache,
            use_cache=True,
        ).logits[:, -1]
    return out, width


def log_probability_sums(model: Any, tokenizer: Any, sequences: torch.Tensor, width: int) -> torch.Tensor:
    """(C,) log-probabilities of the completions, up to and with the end-of-sequence token."""
    chosen, _, mask = log_probabilities(model, tokenizer, sequences, width)
    return (chosen * mask).sum(1)


def log_probabilities(model: Any, tokenizer: Any, sequences: torch.Tensor, width: int) -> tuple[torch.Tensor, ...]:
    """Log-probabilities of the completions' tokens (C, T), of all tokens (C, T, V), and the mask (C, T)."""
    completion = sequences[:, width:]
    ended = (completion == tokenizer.eos_token_id).int()
    mask = (ended.cumsum(1) - ended) == 0
    attention = torch.cat([sequences[:, :width] != tokenizer.pad_token_id, mask], 1).long()
    positions = (attention.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=sequences, attention_mask=attention, position_ids=positions, use_cache=False).logits
    every = torch.log_softmax(logits[:, width - 1 : -1].float(), -1)
    return every.gather(-1, completion[..., None])[..., 0], every, mask


def completions(model: Any, tokenizer: Any, prompts: list[str], samples: int) -> list[list[str]]:
    """``samples`` texts for each of N prompts."""
    encoded = [tokenizer(p)["input_ids"] for p in prompts for _ in range(samples)]
    texts: list[str] = []
    for start in range(0, len(encoded), 1024):
        sequences, width = generate(model, tokenizer, encoded[start : start + 1024])
        texts += tokenizer.batch_decode(sequences[:, width:], skip_special_tokens=True)
    return [texts[i : i + samples] for i in range(0, len(texts), samples)]
