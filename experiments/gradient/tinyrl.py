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


@dataclass
class StepRecord:
    """One step: ids (B,), group sizes (B,), rewards and squared norms (C,) (NaN where the advantage was zero)."""

    prompt_ids: tuple[str, ...]
    group_sizes: np.ndarray
    rewards: np.ndarray
    squared_norms: np.ndarray
    seconds: dict[str, float] = field(default_factory=dict)


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
    ) -> None:
        self.model, self.tokenizer, self.allocator = model, tokenizer, allocator
        self.estimator, self.weighting = estimator, weighting
        self.answers = dict(zip(prompts, answers, strict=True))
        self.encoded = {p: tokenizer(p)["input_ids"] for p in prompts}
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.0)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda s: min(1.0, (s + 1) / warmup))
        self.hook = GradientNormHook(model, layers=layers) if record_norms else None

    def step(self, prompt_ids: list[str], budget: int) -> StepRecord:
        """One update; returns what happened."""
        marks = [time.perf_counter()]
        plan = self.allocator.allocate(prompt_ids, budget)
        marks.append(time.perf_counter())
        names = [prompt_ids[q] for q in plan.rows()]
        sequences, width = generate(self.model, self.tokenizer, [self.encoded[n] for n in names])
        texts = self.tokenizer.batch_decode(sequences[:, width:], skip_special_tokens=True)
        rewards = np.array([float(t == self.answers[n]) for n, t in zip(names, texts, strict=True)])
        marks.append(time.perf_counter())
        norms = self._update(plan, rewards, sequences, width)
        marks.append(time.perf_counter())
        model = self.allocator.model
        if hasattr(model, "observe"):
            model.observe(plan.prompt_ids, plan.prediction, plan.group_sizes, rewards, norms)
        self.allocator.observe(plan, rewards)
        marks.append(time.perf_counter())
        labels = ("allocate", "rollouts", "update", "observe")
        spent = {n: b - a for n, a, b in zip(labels, marks[:-1], marks[1:], strict=True)}
        return StepRecord(plan.prompt_ids, plan.group_sizes, rewards, norms, spent)

    def _update(self, plan: viprl.Plan, rewards: np.ndarray, sequences: torch.Tensor, width: int) -> np.ndarray:
        weighting = "equal" if self.weighting == "equal" else "none"
        advantages = viprl.group_advantages(rewards, plan, self.estimator, prompt_weighting=weighting)
        weights = torch.tensor(np.asarray(advantages), dtype=torch.float32)
        live = torch.nonzero(weights).flatten()  # rollouts without advantage have no gradient
        norms = np.full(len(rewards), np.nan)
        self.optimizer.zero_grad()
        if len(live):
            if self.hook is not None:
                self.hook.begin(weights[live])
            sums = log_probability_sums(self.model, self.tokenizer, sequences[live], width)
            (-(weights[live] * sums).sum() / len(weights)).backward()
            if self.hook is not None:
                norms[live.numpy()] = self.hook.collect() * len(weights) ** 2
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
        self.schedule.step()
        return norms


@torch.no_grad()
def generate(model: Any, tokenizer: Any, prompts: list[list[int]], new: int = 6) -> tuple[torch.Tensor, int]:
    """(C, W + new) sampled sequences, prompts padded on the left to W."""
    width = max(map(len, prompts))
    pad = tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts])
    model.eval()
    out = model.generate(
        input_ids=ids,
        attention_mask=(ids != pad).long(),
        do_sample=True,
        top_k=0,
        top_p=1.0,
        max_new_tokens=new,
        pad_token_id=pad,
        eos_token_id=tokenizer.eos_token_id,
    )
    return out, width


def log_probability_sums(model: Any, tokenizer: Any, sequences: torch.Tensor, width: int) -> torch.Tensor:
    """(C,) log-probabilities of the completions, up to and with the end-of-sequence token."""
    completion = sequences[:, width:]
    ended = (completion == tokenizer.eos_token_id).int()
    mask = (ended.cumsum(1) - ended) == 0
    attention = torch.cat([sequences[:, :width] != tokenizer.pad_token_id, mask], 1).long()
    positions = (attention.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=sequences, attention_mask=attention, position_ids=positions, use_cache=False).logits
    chosen = torch.log_softmax(logits[:, width - 1 : -1].float(), -1).gather(-1, completion[..., None])[..., 0]
    return (chosen * mask).sum(1)


def success_rates(model: Any, tokenizer: Any, prompts: list[str], answers: list[str], samples: int) -> np.ndarray:
    """(N, samples) rewards of held-out prompts."""
    encoded = [tokenizer(p)["input_ids"] for p in prompts for _ in range(samples)]
    found = []
    for start in range(0, len(encoded), 1024):
        sequences, width = generate(model, tokenizer, encoded[start : start + 1024])
        found += tokenizer.batch_decode(sequences[:, width:], skip_special_tokens=True)
    right = [t == answers[i // samples] for i, t in enumerate(found)]
    return np.array(right, dtype=float).reshape(len(prompts), samples)
