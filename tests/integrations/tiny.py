"""A tiny causal language model and data for the trainer tests, built from a config: nothing is downloaded.

The alphabet is one character per token. Prompts are ``word>`` and the reward looks at the first character that the
model writes, so an untrained model succeeds often enough for groups to have both outcomes.
"""

from __future__ import annotations

import random
import string
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tiny_llama import tiny_llama
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

CHARACTERS = string.ascii_lowercase[:12] + string.digits[:4] + "> "
MAX_NEW_TOKENS = 4

torch.set_num_threads(1)  # small matrices: threads cost more than they give


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {"<pad>": 0, "<eos>": 1, "<unk>": 2}
    for character in CHARACTERS:
        vocabulary[character] = len(vocabulary)
    base = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    base.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    base.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=base, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def model(seed: int = 0) -> LlamaForCausalLM:
    return tiny_llama(len(CHARACTERS) + 3, hidden=16, intermediate=32, layers=1, heads=2, spread=0.3, seed=seed)


def words(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(rng.choice(CHARACTERS[:12]) for _ in range(rng.randint(2, 6))) + ">"] = None
    return list(found)


def dataset(count: int = 16, seed: int = 0) -> Dataset:
    """Prompts with their gold answers: a set of first characters that count as right, of a size that varies."""
    prompts = words(count, seed)
    rng = random.Random(seed + 1)
    gold = ["".join(rng.sample(CHARACTERS, 4 + 3 * (i % 5))) for i in range(count)]
    return Dataset.from_dict({"prompt": prompts, "gold": gold, "key": [f"p{i}" for i in range(count)]})


def is_right(completion: str, gold: str) -> bool:
    return bool(completion) and completion[0] in gold


def reward(completions: list[str], gold: list[str], **_: Any) -> list[float]:
    return [float(is_right(c, g)) for c, g in zip(completions, gold, strict=True)]


def arguments(folder: Path | str, **options: Any) -> dict[str, Any]:
    """Trainer arguments for CPU tests: G = 4, C = 24, so B = 6 prompts."""
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": 24,
        "num_generations": 4,
        "max_completion_length": MAX_NEW_TOKENS,
        "max_steps": 2,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "beta": 0.0,
        "bf16": False,
        "use_cpu": True,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        "seed": 1,
        **options,
    }
