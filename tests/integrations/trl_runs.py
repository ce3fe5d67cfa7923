"""Building and recording small runs of the adaptive TRL trainers."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import tiny
import torch
from transformers import TrainerCallback

from viprl.integrations.trl import AdaptiveGRPOConfig, AdaptiveGRPOTrainer, AdaptiveRLOOConfig, AdaptiveRLOOTrainer

# name -> (trainer, options): the estimators that must agree with a computation by hand
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "dr_grpo": ("grpo", {"loss_type": "dr_grpo", "scale_rewards": "none"}),
    "grpo": ("grpo", {"loss_type": "grpo", "scale_rewards": "group"}),
    "rloo_in_grpo": ("grpo", {"loss_type": "dr_grpo", "scale_rewards": "none", "estimator": "rloo"}),
    "rloo": ("rloo", {}),
}


class Uneven:
    """A policy with very uneven groups that change from step to step, by a pure function of the prediction."""

    name = "uneven"

    def allocate(
        self,
        prediction: Any,
        *,
        model: Any,
        budget: int,
        min_group_size: int,
        max_group_size: int,
        scale: Any = None,
    ) -> np.ndarray[Any, Any]:
        sizes = np.full(len(prediction), min_group_size, dtype=np.int64)
        places = np.arange(len(prediction))
        key = np.round(prediction.mean * 1e6).astype(np.int64) * (7919 + places) % 101
        order = np.argsort(key, kind="stable")
        for q in order:
            sizes[q] += (budget - sizes.sum()) // 2
        sizes[order[0]] += budget - sizes.sum()
        return sizes


class Fixed:
    """A policy with given group sizes."""

    name = "fixed"

    def __init__(self, *sizes: int) -> None:
        self.sizes = np.array(sizes)

    def allocate(self, prediction: Any, **_: Any) -> np.ndarray[Any, Any]:
        return self.sizes.copy()


def make(kind: str, folder: Any, **options: Any) -> Any:
    """A trainer; trainer arguments are recognised by name, everything else goes to its config."""
    which, extra = KINDS[kind] if kind in KINDS else (kind, {})
    names = ("reward_funcs", "train_dataset", "eval_dataset", "policy", "predictor", "allocator", "callbacks")
    names += ("peft_config", "model", "processing_class", "rollout_func")
    given = {name: options.pop(name) for name in names if name in options}
    config, trainer = {
        "grpo": (AdaptiveGRPOConfig, AdaptiveGRPOTrainer),
        "rloo": (AdaptiveRLOOConfig, AdaptiveRLOOTrainer),
    }[which]
    settings = {"min_group_size": 2, "max_group_size": 14, "guard": False, **extra, **options}
    given.setdefault("model", tiny.model())
    given.setdefault("reward_funcs", tiny.reward)
    given.setdefault("train_dataset", tiny.dataset())
    given.setdefault("processing_class", tiny.tokenizer())
    if "predictor" not in given and "allocator" not in given:
        given.setdefault("policy", Uneven())
    return trainer(args=config(**tiny.arguments(folder, **settings)), **given)


class Recorder:
    """What a trainer generated and what its loss saw, as text."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.steps: list[Any] = []
        self.batches: list[list[tuple[str, str, float]]] = []
        self.loss_rows: list[list[tuple[str, str, float]]] = []
        generate, loss = trainer._generate_and_score_completions, trainer._compute_loss

        def recorded_generate(inputs: Any) -> Any:
            output = generate(inputs)
            if trainer.model.training:
                self.steps.append(trainer.last_step)
                self.batches.append(self._rows(output))
            return output

        def recorded_loss(model: Any, inputs: Any) -> Any:
            if trainer.model.training:
                self.loss_rows.append(self._rows(inputs))
            return loss(model, inputs)

        trainer._generate_and_score_completions = recorded_generate
        trainer._compute_loss = recorded_loss

    def _rows(self, tensors: Any) -> list[tuple[str, str, float]]:
        decode = self.trainer.processing_class.batch_decode
        prompts = decode(tensors["prompt_ids"], skip_special_tokens=True)
        completions = decode(tensors["completion_ids"], skip_special_tokens=True)
        return list(zip(prompts, completions, tensors["advantages"].tolist(), strict=True))


def expected_advantages(
    rows: list[tuple[str, str, float]], gold: dict[str, str], estimator: str, *, equal: bool = True
) -> list[float]:
    """The advantages of one generation batch from its text alone, in plain Python (distinct prompts)."""
    rewards = [float(tiny.is_right(completion, gold[prompt])) for prompt, completion, _ in rows]
    groups: dict[str, list[float]] = defaultdict(list)
    for (prompt, _, _), r in zip(rows, rewards, strict=True):
        groups[prompt].append(r)
    expected = []
    for (prompt, _, _), r in zip(rows, rewards, strict=True):
        group = groups[prompt]
        n, mean = len(group), sum(group) / len(group)
        if n == 1:
            a = 0.0
        elif estimator == "rloo":
            a = r - (sum(group) - r) / (n - 1)
        elif estimator == "grpo":
            a = (r - mean) / ((sum((x - mean) ** 2 for x in group) / (n - 1)) ** 0.5 + 1e-4)
        else:
            a = r - mean
        expected.append(a * (len(rows) / len(groups) / n if equal else 1))
    return expected


def gold_of(dataset: Any) -> dict[str, str]:
    return dict(zip(dataset["prompt"], dataset["gold"], strict=True))


def parameters(trainer: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


class Gradients(TrainerCallback):
    """Keeps the accumulated gradient of every optimizer step."""

    def __init__(self) -> None:
        self.taken: list[dict[str, torch.Tensor]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self.taken.append({n: p.grad.detach().clone() for n, p in model.named_parameters() if p.grad is not None})
