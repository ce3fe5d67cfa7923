"""What ghost norms cost: processor seconds of a training step's forward and backward pass with and without them.

``python norm_cost.py`` for the arithmetic model (64 rollouts of 14 tokens) and a model of SmolLM2's width with six of
its thirty blocks (8 rollouts of 64 and of 256 tokens; costs are per block, so the share is that of the whole model but
for the output layer, which is left out). Processor time of one thread, so other jobs on the machine do not count.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from viprl.gradient.norm_hook import GradientNormHook
from viprl.tasks.tiny_model import build_tiny_llama, build_tokenizer

RESULTS = Path(__file__).parent / "results"


def wide() -> LlamaForCausalLM:
    """SmolLM2-135M's width; a vocabulary of 1,024 keeps the output layer from hiding the blocks' cost."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=1024,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=6,
            num_attention_heads=9,
            num_key_value_heads=3,
            tie_word_embeddings=True,
            max_position_embeddings=512,
        )
    )


def step(model, ids: torch.Tensor, advantages: torch.Tensor, hook: GradientNormHook | None) -> float:
    start = time.process_time()
    model.zero_grad()
    if hook is not None:
        hook.begin(advantages)
    logits = model(input_ids=ids).logits[:, :-1]
    sums = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0].sum(1)
    (-(advantages * sums).mean()).backward()
    if hook is not None:
        hook.collect()
    return time.process_time() - start


def cost(model, rows: int, tokens: int, layers: str, repeats: int) -> dict:
    """Medians of interleaved repeats with and without the hook."""
    ids = torch.randint(3, model.config.vocab_size - 1, (rows, tokens))
    advantages = torch.linspace(-1, 1, rows)
    hook = GradientNormHook(model, layers=layers)
    plain, hooked = [], []
    for _ in range(repeats + 1):
        hook._capture.detach()
        plain.append(step(model, ids, advantages, None))
        hook._capture.attach()
        hooked.append(step(model, ids, advantages, hook))
    hook.close()
    a, b = (float(torch.tensor(x[1:]).median()) for x in (plain, hooked))
    return {"rows": rows, "tokens": tokens, "layers": layers, "plain": a, "hooked": b, "overhead": b / a - 1}


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tiny, big = build_tiny_llama(build_tokenizer()), wide()
    found = []
    for name, model, rows, tokens, repeats in (
        ("arithmetic", tiny, 64, 14, 15),
        ("SmolLM2 width", big, 8, 64, 5),
        ("SmolLM2 width", big, 4, 256, 3),
    ):
        for layers in ("default", "all"):
            found.append({"model": name, **cost(model, rows, tokens, layers, repeats)})
            print(found[-1], flush=True)
    (RESULTS / "norm_cost.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
