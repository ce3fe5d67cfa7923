"""One training run: a model, its optimiser, and the rollouts it has generated. Rules decide, the world executes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pools import Pool
from tree import Samples, TreePolicy

OBJECTIVES = ("success", "rollout", "maxrl", "grpo")


@dataclass
class Group:
    """Rollouts of one prompt: rewards in {0, 1}, and where they lie: (samples, places) in the order of the rewards."""

    prompt: str
    rewards: np.ndarray
    parts: list[tuple[Samples, np.ndarray]]
    weight: float = 1.0

    @property
    def live(self) -> bool:
        return bool(self.rewards.min() < self.rewards.max())

    def joined(self, other: Group) -> Group:
        """Both groups' rollouts as one group."""
        return Group(self.prompt, np.concatenate([self.rewards, other.rewards]), self.parts + other.parts, self.weight)


@dataclass
class World:
    """``generated`` counts every rollout, trained on or not: the arena's only currency."""

    policy: TreePolicy
    pool: Pool
    learning_rate: float
    seed: int
    objective: str = "success"
    generated: int = 0
    updates: int = 0
    encoded: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        read = lambda texts: [self.policy.tokenizer(t)["input_ids"] for t in texts]  # noqa: E731
        self.encoded = dict(zip(self.pool.prompts, read(self.pool.prompts), strict=True))
        self.answer = dict(zip(self.pool.prompts, map(tuple, read(self.pool.answers)), strict=True))
        self._test = read(self.pool.test_prompts), read(self.pool.test_answers)
        self._random = torch.Generator().manual_seed(10_007 * (1 + self.seed))
        parameters = self.policy.model.parameters()
        self._optimizer = torch.optim.AdamW(
            parameters, lr=self.learning_rate, betas=(0.9, 0.99), weight_decay=0.0, foreach=True
        )

    def roll(self, prompts: list[str], sizes: Any) -> list[Group]:
        """Generate; every group may then be trained on, once, before the next update."""
        sizes = np.asarray(sizes, dtype=np.int64)
        rows = np.repeat(np.arange(len(prompts)), sizes)
        samples = self.policy.sample([self.encoded[p] for p in prompts], rows, self._random)
        end = self.policy.eos
        said = [tuple(row[: list(row).index(end)]) if end in row else None for row in samples.tokens.tolist()]
        rewards = np.array([float(s == self.answer[prompts[r]]) for s, r in zip(said, rows, strict=True)])
        self.generated += len(rows)
        places = np.split(np.arange(len(rows)), np.cumsum(sizes)[:-1])
        return [Group(p, rewards[own], [(samples, own)]) for p, own in zip(prompts, places, strict=True)]

    def train(self, groups: list[Group]) -> None:
        """One update; prompts weigh the same (times their ``weight``) unless the objective says otherwise."""
        kept = [g for g in groups if g.live]
        weights: dict[int, tuple[Samples, np.ndarray]] = {}
        for group in kept:
            advantages, start = group.weight * self._advantages(group.rewards, groups), 0
            for samples, places in group.parts:
                _, own = weights.setdefault(id(samples), (samples, np.zeros(len(samples.tokens))))
                own[places] += advantages[start : start + len(places)]
                start += len(places)
        total = sum((s.weighted_log_probability(w) for s, w in weights.values()), torch.zeros(()))
        self._optimizer.zero_grad()
        if kept:
            (-total / len(groups)).backward()
            for group in self._optimizer.param_groups:
                group["lr"] = self.learning_rate * min(1.0, (self.updates + 1) / 10)
            torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), 1.0)
            self._optimizer.step()
        self.updates += 1

    def _advantages(self, rewards: np.ndarray, groups: list[Group]) -> np.ndarray:
        n, mean = len(rewards), rewards.mean()
        advantages = (rewards - mean) / (n - 1)  # leave-one-out, divided by n
        if self.objective == "rollout":
            return advantages * n * len(groups) / sum(len(g.rewards) for g in groups)
        if self.objective == "maxrl":
            return advantages / mean
        if self.objective == "grpo":
            return (rewards - mean) / (rewards.std(ddof=1) + 1e-4) / n
        return advantages

    def held_out(self) -> np.ndarray:
        """(H,) exact success probabilities of the held-out prompts."""
        return self.policy.probability(*self._test)


def load(warm: Path) -> TreePolicy:
    from transformers import AutoTokenizer, LlamaForCausalLM

    return TreePolicy(LlamaForCausalLM.from_pretrained(warm), AutoTokenizer.from_pretrained(warm))
