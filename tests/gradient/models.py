"""Tiny random models, and per-rollout gradients the slow way: one backward pass each."""

from __future__ import annotations

import torch
from tiny_llama import tiny_llama
from torch import Tensor


def llama(tied: bool = True, seed: int = 0, vocabulary: int = 40):
    model = tiny_llama(vocabulary, hidden=32, intermediate=48, layers=2, heads=4, spread=0.2, tied=tied, seed=seed)
    return model.eval()


def qwen3(seed: int = 0):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    return Qwen3ForCausalLM(config).eval()


def gpt2(seed: int = 0):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    config = GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.2)
    return GPT2LMHeadModel(config).eval()


def batch(rows: int = 5, width: int = 9, seed: int = 1, vocabulary: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    """Left-padded ids (C, T), attention mask, and a mask (C, T) of completion tokens of unequal length."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, vocabulary, (rows, width), generator=generator)
    attention = torch.ones(rows, width, dtype=torch.long)
    completion = torch.zeros(rows, width)
    for row in range(rows):
        left = row % 3
        ids[row, :left] = 0
        attention[row, :left] = 0
        completion[row, 4 : width - row % 2] = 1
    return ids, attention, completion


def log_probabilities(model, ids: Tensor, attention: Tensor, completion: Tensor) -> Tensor:
    """(C,) sums of log pi over each row's completion tokens."""
    positions = (attention.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=attention, position_ids=positions).logits[:, :-1]
    chosen = torch.log_softmax(logits.float(), -1).gather(-1, ids[:, 1:, None])[..., 0]
    return (chosen * completion[:, 1:]).sum(1)


def exact_gradients(model, ids: Tensor, attention: Tensor, completion: Tensor, names: list[str]) -> Tensor:
    """(C, P) by one backward pass per row, parameters in the order of ``names``."""
    parameters = dict(model.named_parameters())
    rows = []
    for c in range(len(ids)):
        part = slice(c, c + 1)
        value = log_probabilities(model, ids[part], attention[part], completion[part]).sum()
        grads = torch.autograd.grad(value, [parameters[n] for n in names])
        rows.append(torch.cat([g.flatten() for g in grads]))
    return torch.stack(rows)
