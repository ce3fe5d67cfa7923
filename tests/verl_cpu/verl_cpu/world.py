"""A tiny Qwen2 with a character-level tokenizer, and a data set of questions of unequal difficulty."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'][0] }}:{{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>a:{% endif %}"
)


def make_model(folder: Path, *, seed: int = 0, positions: int = 256) -> None:
    """Write tokenizer and random weights (about 86,000 parameters)."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    special = ["<pad>", "<eos>", "<|im_start|>", "<|im_end|>", "<unk>"]
    characters = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ"]  # byte-level names of space and newline
    vocabulary = {token: i for i, token in enumerate(special + characters)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def make_rows(
    count: int, *, levels: Sequence[int] = range(9), faults: Sequence[str | None] = (), split: str = "train"
) -> list[dict[str, Any]]:
    """verl rows; prompt i is named ``q<i>`` and has the (i mod their number)-th of the levels, 0 where no answer is
    right; the first prompts carry the given faults."""
    rows = []
    for i in range(count):
        question = f"q{i} {levels[i % len(levels)]}"
        rows.append(
            {
                "data_source": "tiny",
                "prompt": [{"role": "user", "content": question}],
                "ability": "test",
                "reward_model": {"style": "rule", "ground_truth": question},
                "extra_info": {"index": i, "split": split, "fault": faults[i] if i < len(faults) else None},
            }
        )
    return rows


def write_rows(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    import pandas as pd

    pd.DataFrame(list(rows)).to_parquet(path)
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
