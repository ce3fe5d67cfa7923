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
from viprl.tasks.tiny_model import build_tiny_llama

FORMAT = 1  # raise when the warm start's code changes its outcome
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
    """A Llama of about 0.15 million parameters by default that starts out inclined to copy names out of results."""
    return build_tiny_llama(tokenizer, layers=layers, hidden=hidden, seed=seed, positions=512, copying=True)


@dataclass(frozen=True)
class WarmStart:
    """Supervised steps: one hop, then both, from a perfect teacher; then both from a teacher who errs.

    Worlds are drawn anew, so no fact of the world that is trained on later can be learnt.
    """

    one_hop_steps: int = 150
    clean_steps: int = 200
    erring_steps: int = 120
    batch_size: int = 48
    learning_rate: float = 3e-3
    worlds: int = 10
    questions: int = 80
    top_k: int = 2
    mistakes: Mistakes = field(default_factory=Mistakes)
    seed: int = 0


Progress = Callable[[int, int, float], None]  # (step, steps, loss)


def warm_start(
    model: Any, tokenizer: Any, world: FactWorld, recipe: WarmStart, *, progress: Progress | None = None
) -> None:
    """Teach `model` the protocol, imperfectly: it calls, reads and answers, and errs as the teacher does."""
    rng = random.Random(f"warm/{recipe.seed}")
    limits = SearchLimits(top_k=recipe.top_k)
    one_hop: list[Rollout] = []
    two_hop: list[Rollout] = []
    erring: list[Rollout] = []
    for number in range(recipe.worlds):
        other = replace(world, seed=1_000_000 + 1000 * recipe.seed + number)
        retriever = BM25Retriever(other.passages)
        for hops, clean in ((1, one_hop), (2, two_hop)):
            for question in other.questions(hops, seed=number)[: recipe.questions]:
                for mistakes, shelf in ((None, clean), (recipe.mistakes, erring)):
                    turns = demonstrate(question, other, mistakes, rng)
                    shelf.append(render(tokenizer, question, turns, SearchSession(retriever, limits=limits)))
    phases = (
        (one_hop, recipe.one_hop_steps, recipe.learning_rate),
        (one_hop + two_hop, recipe.clean_steps, recipe.learning_rate / 2),
        (erring, recipe.erring_steps, recipe.learning_rate / 3),
    )
    total, done = sum(steps for _, steps, _ in phases), 0
    for rollouts, steps, rate in phases:

        def report(step: int, loss: float, before: int = done) -> None:
            if progress is not None and (step % 10 == 0):
                progress(before + step, total, loss)

        supervise(model, tokenizer, rollouts, steps, rate, recipe.batch_size, rng, report)
        done += steps


def render(tokenizer: Any, question: Any, turns: Sequence[str], session: SearchSession) -> Rollout:
    """A demonstration as a rollout: the teacher's turns carry the mask, the results come from `session`."""
    rollout = Rollout(question, prompt_ids(tokenizer, question_messages(question.question, None)), session)
    for turn in turns:
        rollout.extend([*tokenizer(turn, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id], own=True)
        calls = parse_turn(turn).calls
        if calls:
            rollout.extend(result_ids(tokenizer, [session.call(call) for call in calls]), own=False)
    return rollout


def supervise(
    model: Any,
    tokenizer: Any,
    rollouts: Sequence[Rollout],
    steps: int,
    learning_rate: float,
    batch_size: int,
    rng: random.Random,
    report: Callable[[int, float], None],
) -> None:
    """Cross-entropy on the teacher's tokens, plus that on all others (names repeat in results, which teaches to copy).

    Warm-up over 30 steps, then linear decay to a fifth of the rate.
    """
    import torch
    from torch.nn.functional import cross_entropy

    if not steps:
        return
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 30) * max(0.2, 1 - s / steps))
    model.train()
    for step in range(steps):
        inputs, attention, labels = collate(rng.choices(rollouts, k=batch_size), tokenizer.pad_token_id)
        logits = model(input_ids=inputs, attention_mask=attention).logits[:, :-1]
        losses = cross_entropy(logits.transpose(1, 2), inputs[:, 1:], reduction="none")
        own = labels[:, 1:] != -100
        others = attention[:, 1:].bool() & ~own
        loss = losses[own].mean() + losses[others].mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        report(step + 1, losses[own].mean().item())
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
