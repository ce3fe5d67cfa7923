"""The search tool as TRL's GRPOTrainer runs it (`environment_factory=`), and the tolerant parser it needs.

TRL parses calls with the tokenizer's `parse_response`, hands them to the methods of one environment object per rollout,
appends the results as masked tokens (`tool_mask` = 0), and generates on. Out of the box a call that is not clean JSON
ends the rollout in silence; with `prepare_tokenizer` it reaches the session, which answers and counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from viprl.errors import ConfigurationError
from viprl.tasks.search.escape import Escaper, special_tokens
from viprl.tasks.search.protocol import TOOL_NAME, ToolCall, Turn, parse_turn, query_of
from viprl.tasks.search.retrievers import Retriever
from viprl.tasks.search.session import SearchLimits, SearchSession

# What TRL checks for before it hands text to `parse_response`; our parser does the work. Qwen's markers.
RESPONSE_TEMPLATE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {"open": "<tool_call>", "close_pattern": r"</tool_call>\s*", "repeats": True, "content": "text"},
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}


class ParsedQuery(str):
    """A query that carries the whole call, so that a broken call can travel through a trainer's tool loop."""

    call: ToolCall

    def __new__(cls, call: ToolCall) -> ParsedQuery:
        query = super().__new__(cls, str(call.arguments.get("query", "")))
        query.call = call
        return query

    def __getnewargs__(self) -> tuple[ToolCall]:  # type: ignore[override]  # copying and pickling
        return (self.call,)


class SearchEnvironment:
    """One rollout's environment. Public methods are the model's tools; made by `SearchEnvironmentFactory`."""

    def __init__(self, new_session: Callable[[], SearchSession]) -> None:
        self._new_session = new_session
        self._session = new_session()

    def reset(self, **_row: Any) -> None:
        """Start the next rollout."""
        self._session = self._new_session()

    def search(self, query: str) -> str:
        """Search the corpus for passages.

        Args:
            query: What to look for.

        Returns:
            The passages found.
        """
        call = getattr(query, "call", None)
        return self._session.search(query) if call is None else self._session.call(call)


class SearchEnvironmentFactory:
    """Makes environments that share one retriever.

    Args:
        retriever: any `Retriever`.
        tokenizer: the policy's; its special tokens are escaped in passages and its tokens are what limits count.
        limits: see `SearchLimits`.
    """

    def __init__(self, retriever: Retriever, tokenizer: Any, *, limits: SearchLimits | None = None) -> None:
        self.retriever = retriever
        self.limits = limits or SearchLimits()
        self.escaper = Escaper(special_tokens(tokenizer))
        self._tokenizer = tokenizer

    def session(self) -> SearchSession:
        """A fresh session for one rollout."""
        return SearchSession(self.retriever, limits=self.limits, escaper=self.escaper, count_tokens=self._count_tokens)

    def __call__(self) -> SearchEnvironment:
        return SearchEnvironment(self.session)

    def _count_tokens(self, text: str) -> int:
        return len(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def session_of(environment: Any) -> SearchSession | None:
    """The session behind an environment, for rewards; None for environments of another kind."""
    session = getattr(environment, "_session", None)
    return session if isinstance(session, SearchSession) else None


def prepare_tokenizer(tokenizer: Any, *, prefetch: Callable[[str], None] | None = None) -> Any:
    """Make `tokenizer.parse_response` tolerant (see `protocol.parse_turn`); returns the same tokenizer.

    Args:
        tokenizer: with a chat template that renders tools and marks calls with <tool_call> (Qwen's convention).
        prefetch: called with each query as soon as it is parsed (see `prefetch.PrefetchingRetriever`).

    Raises:
        ConfigurationError: no chat template, or one with another convention for calls.
    """
    template = getattr(tokenizer, "chat_template", None)
    if not isinstance(template, str) or "<tool_call>" not in template or "<function=" in template:
        raise ConfigurationError(
            "search needs a chat template that writes calls as <tool_call>{...}</tool_call>, but the tokenizer's "
            + ("has another convention" if template else "chat template is missing")
        )
    if getattr(tokenizer, "response_template", None) is None:
        tokenizer.response_template = RESPONSE_TEMPLATE
    known_by_trainer = TOOL_NAME

    def parse_response(
        response: Any, schema: Any = None, *, prefix: Any = None, tools: Sequence[Any] | None = None
    ) -> Any:
        if isinstance(response, Sequence) and response and not isinstance(response, str):
            if not isinstance(response[0], int):
                return [parse_response(item, schema, prefix=prefix, tools=tools) for item in response]
        text = response if isinstance(response, str) else tokenizer.decode(response, skip_special_tokens=False)
        opened = prefix if isinstance(prefix, str) else tokenizer.decode(prefix) if prefix else ""
        others = {tool_name(tool) for tool in tools or ()} - {known_by_trainer}
        for token in (tokenizer.eos_token, tokenizer.pad_token):
            if token:
                text = text.removesuffix(token)
        return _message(parse_turn(text, thinking=opened.rstrip().endswith("<think>")), others, prefetch)

    tokenizer.parse_response = parse_response
    return tokenizer


def tool_name(tool: Any) -> str:
    """Name of a tool given as a function or as a JSON schema."""
    if isinstance(tool, dict):
        return str(tool.get("function", tool).get("name", ""))
    return str(getattr(tool, "__name__", ""))


def _message(turn: Turn, others: set[str], prefetch: Callable[[str], None] | None) -> dict[str, Any]:
    """A chat message; `well_formed` is ours, for the format reward."""
    broken = any(call.error for call in turn.calls)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": turn.content,
        "well_formed": turn.thought_closed and not broken,
    }
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [_tool_call(call, others) for call in turn.calls]
        if prefetch is not None:
            for call in turn.calls:
                for query in (query_of(call.arguments) or ()) if call.error is None and call.name == TOOL_NAME else ():
                    prefetch(query)
    return message


def _tool_call(call: ToolCall, others: set[str]) -> dict[str, Any]:
    if call.error is None and call.name in others:  # a tool of the user's own, run by the trainer
        return {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    return {"type": "function", "function": {"name": TOOL_NAME, "arguments": {"query": ParsedQuery(call)}}}
