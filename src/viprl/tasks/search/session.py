"""One rollout's use of the search tool: calls in, text for the model out, everything counted.

The same session serves TRL's environment, verl's tool and the evaluation loop, so a malformed call, a dead server or a
hostile passage has one defined result everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from viprl.errors import InvalidInputError
from viprl.tasks.search.escape import Escaper
from viprl.tasks.search.passages import Hit
from viprl.tasks.search.protocol import TOOL_NAME, ToolCall, query_of
from viprl.tasks.search.retrievers import RetrievalError, Retriever

EVENTS = (
    "calls",  # everything that looked like a call
    "searches",  # queries that reached the retriever
    "malformed_calls",  # could not be read, or had no query
    "repaired_calls",  # read only with tolerance
    "unknown_tools",
    "call_limit_hits",
    "repeated_queries",
    "truncated_queries",
    "empty_results",
    "truncated_passages",
    "escaped_passages",
    "retrieval_errors",
)


@dataclass(frozen=True)
class SearchLimits:
    """Bounds of one rollout. Turns and generated tokens are bounded by whoever generates.

    Attributes:
        top_k: passages per query.
        max_calls: queries of a rollout; later ones are answered with a reminder.
        max_query_chars: longer queries are cut.
        max_passage_chars: longer passages are cut, before escaping: a 10 MB passage costs nothing.
        max_response_tokens: of one result, counted with the session's `count_tokens`; whole passages are dropped from
            the end. None = no bound.
    """

    top_k: int = 5
    max_calls: int = 8
    max_query_chars: int = 1000
    max_passage_chars: int = 4000
    max_response_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("top_k", "max_calls", "max_query_chars", "max_passage_chars"):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name} >= 1 must hold, but got {getattr(self, name)}")
        if self.max_response_tokens is not None and self.max_response_tokens < 1:
            raise InvalidInputError(f"max_response_tokens >= 1 must hold, but got {self.max_response_tokens}")


@dataclass
class SearchRecord:
    """One call of a rollout, for transcripts and retrieval scores."""

    query: str
    hits: list[Hit] = field(default_factory=list)
    error: str | None = None


class SearchSession:
    """Answers the calls of one rollout.

    Args:
        retriever: shared by all sessions.
        limits: see `SearchLimits`.
        escaper: made with the tokenizer's special tokens (see `escape.special_tokens`).
        count_tokens: text -> tokens; needed where `max_response_tokens` is set.
    """

    def __init__(
        self,
        retriever: Retriever,
        *,
        limits: SearchLimits | None = None,
        escaper: Escaper | None = None,
        count_tokens: Callable[[str], int] | None = None,
    ) -> None:
        self.retriever = retriever
        self.limits = limits or SearchLimits()
        self.escaper = escaper or Escaper()
        if self.limits.max_response_tokens is not None and count_tokens is None:
            raise InvalidInputError("max_response_tokens needs `count_tokens`, but got none")
        self._count_tokens = count_tokens
        self.events: Counter[str] = Counter()
        self.records: list[SearchRecord] = []

    @property
    def outage(self) -> bool:
        """Whether the retriever failed at least once: the rollout's reward then says little about the policy."""
        return self.events["retrieval_errors"] > 0

    def call(self, call: ToolCall) -> str:
        """The text to show the model for one parsed call; never raises for anything the model or a server did."""
        self.events["calls"] += 1
        self.events["repaired_calls"] += call.repaired
        if call.error is not None:
            return self._malformed(call.error)
        if call.name != TOOL_NAME:
            self.events["unknown_tools"] += 1
            return error_text(f"there is no tool {self.escaper(call.name[:60])!r}; the only tool is {TOOL_NAME!r}")
        queries = query_of(call.arguments)
        if queries is None:
            return self._malformed('a search needs the argument "query", a string')
        return "\n\n".join(self._search(query) for query in queries[: self.limits.max_calls + 1])

    def search(self, query: Any) -> str:
        """The same for a bare query, as trainers that parse calls themselves hand it over."""
        return self.call(ToolCall(TOOL_NAME, {"query": query}))

    def _malformed(self, problem: str) -> str:
        self.events["malformed_calls"] += 1
        return error_text(f'{problem}; write {{"name": "{TOOL_NAME}", "arguments": {{"query": "..."}}}}')

    def _search(self, query: str) -> str:
        query = " ".join(query.split())
        if not query:
            return self._malformed("the query is empty")
        if len(self.records) >= self.limits.max_calls:
            self.events["call_limit_hits"] += 1
            return error_text(f"all {self.limits.max_calls} searches are used up; answer now in \\boxed{{}}")
        if len(query) > self.limits.max_query_chars:
            self.events["truncated_queries"] += 1
            query = query[: self.limits.max_query_chars]
        self.events["repeated_queries"] += any(record.query == query for record in self.records)
        record = SearchRecord(query)
        self.records.append(record)
        self.events["searches"] += 1
        try:
            record.hits = self.retriever.retrieve([query], self.limits.top_k)[0]
        except RetrievalError as error:
            self.events["retrieval_errors"] += 1
            record.error = str(error)
            return error_text(self.escaper(str(error)))
        if not record.hits:
            self.events["empty_results"] += 1
            return "No passages found."
        return self._format(record.hits)

    def _format(self, hits: Sequence[Hit]) -> str:
        blocks = [f"[{number}] {self._passage(hit)}" for number, hit in enumerate(hits, start=1)]
        if self.limits.max_response_tokens is not None and self._count_tokens is not None:
            blocks = self._fit(blocks, self.limits.max_response_tokens, self._count_tokens)
        return "\n".join(blocks)

    def _passage(self, hit: Hit) -> str:
        title, text = hit.passage.title, hit.passage.text
        if len(title) + len(text) > self.limits.max_passage_chars:
            self.events["truncated_passages"] += 1
            title = title[: self.limits.max_passage_chars // 4]
            text = text[: self.limits.max_passage_chars - len(title)] + " ..."
        shown = f"{title}: {text}" if title else text
        escaped = self.escaper(shown)
        self.events["escaped_passages"] += escaped != shown
        return escaped

    def _fit(self, blocks: Sequence[str], room: int, count: Callable[[str], int]) -> list[str]:
        """As many blocks as fit into `room` tokens; the first that does not is cut, the rest dropped."""
        kept: list[str] = []
        for block in blocks:
            cost = count(block)
            if cost <= room:
                kept.append(block)
                room -= cost
                continue
            self.events["truncated_passages"] += 1
            low, high = 0, len(block)
            while low < high:  # longest beginning that fits
                middle = (low + high + 1) // 2
                low, high = (middle, high) if count(block[:middle]) <= room else (low, middle - 1)
            if low > len("[1] "):
                kept.append(block[:low])
            break
        return kept


def error_text(problem: str) -> str:
    """How every failure looks to the model."""
    return f"Error: {problem}"
