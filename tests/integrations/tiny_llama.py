"""The random Llama that the tests train or differentiate, at whatever size they need."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def tiny_llama(
    vocabulary: int,
    *,
    hidden: int,
    intermediate: int,
    layers: int,
    heads: int,
    spread: float,
    tied: bool = True,
    seed: int = 0,
) -> LlamaForCausalLM:
    """Two key-value heads; weights of standard deviation ``spread``, large enough for outputs to differ."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        initializer_range=spread,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)
