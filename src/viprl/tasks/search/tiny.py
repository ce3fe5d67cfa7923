"""A tokenizer, chat template and Llama for the synthetic world, built from nothing on disk, and its warm start."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from viprl.tasks.search.agent import Rollout, prompt_ids, question_messages, result_ids
from viprl.tasks.search.bm25 import BM25Retriever
from viprl.tasks.search.protocol import parse_turn
from viprl.tasks.search.session import SearchLimits, SearchSession
from viprl.tasks.search.world import RELATIONS, FactWorld, Mistakes, demonstrate, names

CONTROL = ("<|pad|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
PIECES = r" ?\w+|[^\w\s]+|\s"
CHAT_TEMPLATE = (
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}"
    "{{- '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}"
    "{%- else %}"
    "{{- '<|im_start|>' + m.role + '\n' + m.content }}"
    "{%- for call in m.tool_calls or [] %}"
    "{%- set f = call.function if call.function is defined else call %}"
    "{{- '<tool_call>\n{\"name\": \"' + f.name + '\", \"arguments\": ' + (f.arguments | tojson) + '}\n</tool_call>' }}"
    "{%- endfor %}"
    "{{- '<|im_end|>\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


def build_tokenizer(world: FactWorld) -> Any:
    """A word-level tokenizer over everything that the protocol and the world can say; bytes it lacks are <|unk|>."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    splitter = pre_tokenizers.Split(Regex(PIECES), "isolated")
    said = [
        *(f" {name} {name.lower()}" for name in names(world.people)),
        *(f'{relation} {relation}"' for relation in RELATIONS),
        "Who is the of? The is. [1] [2] [3] [4] [5] : \n query of",
        "user\nassistant\ntool\nsystem\nError: [1] The mother",
        '\n{"name": "search", "arguments": {"query": "mother of Talo"}}\n search of',
        "\\boxed{ Talo} No passages found. Error: the call cannot be read: it is not JSON; it is empty write",
        ' {"name": "search", "arguments": {"query": "..."}}',
        " all searches are used up; answer now in \\boxed{} 0 1 2 3 4 5",
        " there is no tool 'search'; the only tool is",
    ]
    words = dict.fromkeys(piece for text in said for piece, _ in splitter.pre_tokenize_str(text))
    vocabulary = {token: index for index, token in enumerate(["<|unk|>", *CONTROL, *TAGS, *words])}
    model = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unk|>"))
    model.pre_tokenizer = splitter
    model.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=model,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        unk_token="<|unk|>",
        additional_special_tokens=["<|im_start|>"],
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_tokens(list(TAGS))
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(tokenizer: Any, *, layers: int = 2, hidden: int = 64, seed: int = 0) -> Any:
    """A randomly initialised Llama with tied embeddings (about 0.15 million parameters by default)."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=hidden,
                intermediate_size=4 * hidden,
                num_hidden_layers=layers,
                num_attention_heads=4,
                num_key_value_heads=4,
                max_position_embeddings=512,
                tie_word_embeddings=True,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=tokenizer.eos_token_id,
                bos_token_id=None,
            )
        )


@dataclass(frozen=True)
class WarmStart:
    """Supervised steps on a perfect teacher, then on one that errs; worlds are drawn anew, so no fact can be learnt."""

    clean_steps: int = 600
    erring_steps: int = 150
    batch_size: int = 64
    learning_rate: float = 4e-3
    worlds: int = 12
    top_k: int = 2
    mistakes: Mistakes = field(default_factory=Mistakes)
    seed: int = 0


def warm_start(
    model: Any, tokenizer: Any, world: FactWorld, recipe: WarmStart, *, log: Callable[[str], None] | None = None
) -> None:
    """Teach `model` the protocol, imperfectly: it calls, reads and answers, and errs as the teacher does.

    Worlds with other seeds than `world`'s are used; the model never sees a fact of `world`.
    """
    rng = random.Random(f"warm/{recipe.seed}")
    clean, erring = [], []
    for number in range(recipe.worlds):
        other = replace(world, seed=1_000_000 + 1000 * recipe.seed + number)
        retriever = BM25Retriever(other.passages)
        pool = [*other.questions(2, seed=number)[:90], *other.questions(1, seed=number)[:40]]
        for question in pool:
            session = SearchSession(retriever, limits=SearchLimits(top_k=recipe.top_k))
            clean.append(render(tokenizer, question, demonstrate(question, other, None, rng), session))
            session = SearchSession(retriever, limits=SearchLimits(top_k=recipe.top_k))
            erring.append(render(tokenizer, question, demonstrate(question, other, recipe.mistakes, rng), session))
    _supervise(model, tokenizer, clean, recipe.clean_steps, recipe, rng, log)
    _supervise(model, tokenizer, erring, recipe.erring_steps, replace(recipe, learning_rate=1e-3), rng, log)


def render(tokenizer: Any, question: Any, turns: Sequence[str], session: SearchSession) -> Rollout:
    """A demonstration as a rollout: the teacher's turns carry the mask, the results come from `session`."""
    rollout = Rollout(question, prompt_ids(tokenizer, question_messages(question.question, None)), session)
    for turn in turns:
        rollout.extend([*tokenizer(turn, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id], own=True)
        calls = parse_turn(turn).calls
        if calls:
            rollout.extend(result_ids(tokenizer, [session.call(call) for call in calls]), own=False)
    return rollout


def _supervise(
    model: Any,
    tokenizer: Any,
    rollouts: Sequence[Rollout],
    steps: int,
    recipe: WarmStart,
    rng: random.Random,
    log: Callable[[str], None] | None,
) -> None:
    """Cross-entropy on the teacher's own tokens; warm-up over 50 steps, then linear decay to a tenth."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 50) * max(0.1, 1 - s / steps))
    model.train()
    for step in range(steps):
        inputs, attention, labels = collate(rng.choices(rollouts, k=recipe.batch_size), tokenizer.pad_token_id)
        loss = model(input_ids=inputs, attention_mask=attention, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if log is not None and (step + 1) % 50 == 0:
            log(f"warm start {step + 1}/{steps}: loss {loss.item():.4f}")
    model.eval()


def collate(rollouts: Sequence[Rollout], pad: int) -> tuple[Any, Any, Any]:
    """(inputs, attention, labels), padded on the right; only the model's own tokens (mask = 1) are labels."""
    import torch

    longest = max(len(r.prompt_ids) + len(r.token_ids) for r in rollouts)
    inputs = torch.full((len(rollouts), longest), pad, dtype=torch.long)
    attention, labels = torch.zeros_like(inputs), torch.full_like(inputs, -100)
    for row, rollout in enumerate(rollouts):
        ids, start = torch.tensor(rollout.prompt_ids + rollout.token_ids), len(rollout.prompt_ids)
        own = torch.tensor(rollout.mask, dtype=torch.bool)
        inputs[row, : len(ids)] = ids
        attention[row, : len(ids)] = 1
        labels[row, start : len(ids)] = torch.where(own, ids[start:], torch.full_like(ids[start:], -100))
    return inputs, attention, labels
