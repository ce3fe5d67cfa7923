"""The search agent's loop outside a trainer: generate, call, append, until an answer or a limit.

Tokens go in and out: what the model generated is never decoded and tokenised again, so the mask (1 = the model's own
token, 0 = the environment's) is exact. Used by the evaluation and by warm starts; trainers have loops of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from viprl.errors import InvalidInputError
from viprl.tasks.search.protocol import SEARCH_SCHEMA, SYSTEM_PROMPT, parse_turn
from viprl.tasks.search.questions import Question
from viprl.tasks.search.session import SearchSession

STOPS = ("answered", "no_answer", "turn_limit", "token_limit", "cut_off")


class Generate(Protocol):
    """Continues token sequences: (B) lists in, (B) lists of new tokens out, the end token included where it came."""

    def __call__(self, sequences: Sequence[Sequence[int]], max_new_tokens: int) -> list[list[int]]: ...


@dataclass
class Rollout:
    """One finished conversation.

    Attributes:
        token_ids: everything after the prompt.
        mask: of the same length; 1 where the model generated the token.
        messages: assistant and tool turns as TRL's rewards see them.
        stop: "answered"; "no_answer" (a final turn without call and \\boxed{}); "turn_limit"; "token_limit" (no room
            for the next result or turn); "cut_off" (a turn without end token).
    """

    question: Question
    prompt_ids: list[int]
    session: SearchSession
    token_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    stop: str = ""

    def extend(self, ids: Sequence[int], own: bool) -> None:
        """Append tokens of the model (own) or of the environment."""
        self.token_ids.extend(ids)
        self.mask.extend([int(own)] * len(ids))


@dataclass(frozen=True)
class LoopLimits:
    """Bounds of one conversation.

    Attributes:
        max_turns: assistant turns.
        max_turn_tokens: new tokens of a turn.
        max_tokens: everything after the prompt, results included.
    """

    max_turns: int = 6
    max_turn_tokens: int = 1024
    max_tokens: int = 8192

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_turn_tokens", "max_tokens"):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name} >= 1 must hold, but got {getattr(self, name)}")


def question_messages(question: str, system_prompt: str | None = SYSTEM_PROMPT) -> list[dict[str, str]]:
    """The conversation's start."""
    system = [{"role": "system", "content": system_prompt}] if system_prompt else []
    return [*system, {"role": "user", "content": question}]


def run_rollouts(
    generate: Generate,
    tokenizer: Any,
    questions: Sequence[Question],
    new_session: Callable[[], SearchSession],
    *,
    limits: LoopLimits | None = None,
    system_prompt: str | None = SYSTEM_PROMPT,
) -> list[Rollout]:
    """One rollout for each question, generated together turn by turn."""
    limits = limits or LoopLimits()
    rollouts = [
        Rollout(q, prompt_ids(tokenizer, question_messages(q.question, system_prompt)), new_session())
        for q in questions
    ]
    active = rollouts
    for turn in range(limits.max_turns):
        if not active:
            break
        room = min(limits.max_turn_tokens, max(limits.max_tokens - len(r.token_ids) for r in active))
        continuations = generate([r.prompt_ids + r.token_ids for r in active], room)
        for rollout, ids in zip(active, continuations, strict=True):
            own = list(ids)[: limits.max_tokens - len(rollout.token_ids)]
            _take_turn(rollout, own, tokenizer, limits, last=turn + 1 == limits.max_turns)
        active = [rollout for rollout in active if not rollout.stop]
    return rollouts


def _take_turn(rollout: Rollout, own: list[int], tokenizer: Any, limits: LoopLimits, *, last: bool) -> None:
    rollout.extend(own, own=True)
    ended = bool(own) and own[-1] == tokenizer.eos_token_id
    turn = parse_turn(tokenizer.decode(own[:-1] if ended else own))
    broken = any(call.error for call in turn.calls)
    message: dict[str, Any] = {"role": "assistant", "content": turn.content}
    message["well_formed"] = ended and turn.thought_closed and not broken
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [{"name": c.name, "arguments": c.arguments, "raw": c.raw} for c in turn.calls]
    rollout.messages.append(message)
    if not ended:
        rollout.stop = "cut_off"
    elif not turn.calls:
        rollout.stop = "answered" if "\\boxed" in turn.content else "no_answer"
    elif last:
        rollout.stop = "turn_limit"
    else:
        results = [rollout.session.call(call) for call in turn.calls]
        suffix = result_ids(tokenizer, results)
        if len(rollout.token_ids) + len(suffix) >= limits.max_tokens:
            rollout.stop = "token_limit"
            return
        rollout.extend(suffix, own=False)
        rollout.messages.extend({"role": "tool", "name": "search", "content": text} for text in results)


def prompt_ids(tokenizer: Any, messages: Sequence[dict[str, str]]) -> list[int]:
    """Token ids of the conversation up to where the model writes."""
    ids: list[int] = tokenizer.apply_chat_template(
        list(messages), tools=[SEARCH_SCHEMA], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return ids


def result_ids(tokenizer: Any, results: Sequence[str]) -> list[int]:
    """Token ids that follow the model's end token: the results and the opening of its next turn.

    Found as the difference between a conversation with and without results; works for every template that leaves
    earlier messages as they were when later ones come.

    Raises:
        InvalidInputError: the template is not of that kind.
    """
    call = {"type": "function", "function": {"name": "search", "arguments": {"query": "x"}}}
    before: list[dict[str, Any]] = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    tools = [{"role": "tool", "name": "search", "content": text} for text in results]
    short = tokenizer.apply_chat_template(before, tokenize=True, return_dict=False)
    full = tokenizer.apply_chat_template(before + tools, add_generation_prompt=True, tokenize=True, return_dict=False)
    ends = [i for i, token in enumerate(short) if token == tokenizer.eos_token_id]
    cut = ends[-1] + 1 if ends else len(short)
    if full[:cut] != short[:cut]:
        raise InvalidInputError("the chat template must keep earlier messages as they are when results follow them")
    suffix: list[int] = full[cut:]
    return suffix


class ModelGenerate:
    """`Generate` with a transformers causal language model.

    Args:
        temperature: 0 = greedy.
        batch_size: sequences at a time; similar lengths are put together.
        seed: of the sampling; every call draws on from there.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, temperature: float = 1.0, batch_size: int = 64, seed: int | None = None
    ) -> None:
        if temperature < 0 or batch_size < 1:
            raise InvalidInputError(
                f"temperature >= 0 and batch_size >= 1 must hold, but got ({temperature}, {batch_size})"
            )
        self.model, self.tokenizer = model, tokenizer
        self.temperature, self.batch_size = temperature, batch_size
        if seed is not None:
            import torch

            torch.manual_seed(seed)

    def __call__(self, sequences: Sequence[Sequence[int]], max_new_tokens: int) -> list[list[int]]:
        order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
        outputs: list[list[int]] = [[] for _ in sequences]
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            for row, ids in zip(rows, self._batch([sequences[i] for i in rows], max_new_tokens), strict=True):
                outputs[row] = ids
        return outputs

    def _batch(self, sequences: Sequence[Sequence[int]], max_new_tokens: int) -> list[list[int]]:
        import torch

        end, pad = self.tokenizer.eos_token_id, self.tokenizer.pad_token_id
        pad = end if pad is None else pad
        longest = max(map(len, sequences))
        ids = torch.full((len(sequences), longest), pad, dtype=torch.long)
        attention = torch.zeros_like(ids)
        for row, sequence in enumerate(sequences):
            ids[row, longest - len(sequence) :] = torch.tensor(list(sequence))
            attention[row, longest - len(sequence) :] = 1
        device = next(self.model.parameters()).device
        choice: dict[str, Any] = {"do_sample": False}
        if self.temperature > 0:
            choice = {"do_sample": True, "temperature": self.temperature, "top_k": 0, "top_p": 1.0}
        with torch.no_grad():
            out = self.model.generate(
                input_ids=ids.to(device),
                attention_mask=attention.to(device),
                max_new_tokens=max_new_tokens,
                pad_token_id=pad,
                eos_token_id=end,
                **choice,
            )
        new = out[:, longest:].tolist()
        return [row[: row.index(end) + 1] if end in row else row for row in new]
