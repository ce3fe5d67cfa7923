"""A character-level tokenizer and a Llama of 0.8 million parameters, both built from nothing on disk."""

from __future__ import annotations

from typing import Any

CHARACTERS = "0123456789+="
SPECIAL = ("<pad>", "<eos>", "<unk>")


def build_tokenizer() -> Any:
    """A fast tokenizer whose tokens are ``CHARACTERS``; pads on the left, as generation needs."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
    )


def build_tiny_llama(
    tokenizer: Any, *, layers: int = 3, hidden: int = 128, seed: int = 0, positions: int = 64, copying: bool = False
) -> Any:
    """A randomly initialised Llama with tied embeddings (790 thousand parameters by default).

    Args:
        positions: longest sequence.
        copying: start out inclined to copy. From a plain initialisation models of this size need many hundreds of
            steps to discover that; with value and output projections near multiples of the identity (what a head
            attends to, it adds to its prediction) and larger embeddings it takes about a hundred.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=hidden,
                intermediate_size=4 * hidden,
                num_hidden_layers=layers,
                num_attention_heads=4,
                num_key_value_heads=4,
                max_position_embeddings=positions,
                tie_word_embeddings=True,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=tokenizer.eos_token_id,
                bos_token_id=None,
            )
        )
        if copying:
            with torch.no_grad():
                model.model.embed_tokens.weight.normal_(0.0, 0.1)
                for layer in model.model.layers:
                    for projection in (layer.self_attn.v_proj, layer.self_attn.o_proj):
                        projection.weight.add_(0.5 * torch.eye(hidden))
    return model
