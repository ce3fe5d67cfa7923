"""Client of a retrieval server that speaks Search-R1's protocol.

Request: ``POST /retrieve {"queries": [...], "topk": k, "return_scores": true}``. Response: ``{"result": [[{"document":
{...}, "score": s}, ...], ...]}``, one list per query (without scores: the documents themselves). Search-R1's own
server has no health endpoint, so none is needed here.
"""

from __future__ import annotations

import http.client
import json
import math
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from viprl.errors import InvalidInputError
from viprl.tasks.search.passages import Hit, Passage
from viprl.tasks.search.retrievers import RetrievalError, check_request

_RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


class _Temporary(Exception):
    """A failure that another attempt may cure."""


class HttpRetriever:
    """Retriever over HTTP with time-outs, retries and a circuit breaker.

    Connections are kept open, one per thread. An attempt fails by time-out, connection error or a status that servers
    use for overload; after `attempts` of them the call raises `RetrievalError`. After `breaker_failures` failed calls
    in a row, calls fail at once for `breaker_seconds`, so that a dead server costs a training step seconds, not
    attempts x time-out for each of its thousands of calls.

    Args:
        url: of the server; ``/retrieve`` is added where the path is empty.
        timeout: seconds an attempt may take to connect, and again between two reads.
        attempts: tries of a call.
        backoff: seconds before the second try; doubles each time, at most `max_backoff`, with up to 50 % jitter.
        max_response_bytes: longer answers are refused.
        sleep, clock: replaced in tests.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 10.0,
        attempts: int = 4,
        backoff: float = 0.25,
        max_backoff: float = 4.0,
        breaker_failures: int = 3,
        breaker_seconds: float = 5.0,
        max_response_bytes: int = 64 * 2**20,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInputError(f"a retrieval server's address must be http(s)://HOST..., but got {url!r}")
        if not (timeout > 0 and attempts >= 1 and backoff >= 0):
            raise InvalidInputError(
                "timeout > 0, attempts >= 1, backoff >= 0 must hold, "
                f"but got (timeout={timeout}, attempts={attempts}, backoff={backoff})"
            )
        self.url = url
        self.timeout, self.attempts, self.backoff, self.max_backoff = timeout, attempts, backoff, max_backoff
        self.breaker_failures, self.breaker_seconds = breaker_failures, breaker_seconds
        self.max_response_bytes = max_response_bytes
        self._sleep, self._clock = sleep, clock
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        path = "/retrieve" if parts.path in ("", "/") else parts.path
        self._path = f"{path}?{parts.query}" if parts.query else path
        self._lock = threading.Lock()
        self._failures, self._closed_until = 0, -math.inf
        self._reset_per_process()
        self.counts = {"requests": 0, "retries": 0, "failures": 0, "refused_by_breaker": 0}

    def _reset_per_process(self) -> None:
        self._local = threading.local()
        self._random = random.Random()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_lock", "_local", "_random")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
        self._reset_per_process()

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """See `Retriever.retrieve`."""
        check_request(queries, top_k)
        if not queries:
            return []
        self._pass_breaker()
        try:
            payload = {"queries": [_encodable(query) for query in queries], "topk": top_k, "return_scores": True}
            answer = self._call(json.dumps(payload).encode())
            hits = parse_result(answer, len(queries), top_k)
        except RetrievalError:
            self._report(failed=True)
            raise
        self._report(failed=False)
        return hits

    def close(self) -> None:
        """Close this thread's connection."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def _call(self, body: bytes) -> Any:
        for attempt in range(self.attempts):
            try:
                return self._attempt(body)
            except (OSError, http.client.HTTPException, _Temporary) as error:
                self.close()
                reason = "timed out" if isinstance(error, TimeoutError) else (str(error) or type(error).__name__)
            if attempt + 1 < self.attempts:
                with self._lock:
                    self.counts["retries"] += 1
                pause = min(self.backoff * 2**attempt, self.max_backoff)
                self._sleep(pause * (1 + self._random.random() / 2))
        raise RetrievalError(f"the search service did not answer ({self.attempts} attempts, last: {reason})")

    def _attempt(self, body: bytes) -> Any:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            connection = self._local.connection = kind(self._host, self._port, timeout=self.timeout)
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        connection.request("POST", self._path, body=body, headers=headers)
        response = connection.getresponse()
        content = response.read(self.max_response_bytes + 1)
        if len(content) > self.max_response_bytes:
            self.close()
            raise RetrievalError(f"the search service's answer must be below {self.max_response_bytes} bytes")
        if response.length:  # read(amount) returns what came before a connection broke, without an error
            raise http.client.IncompleteRead(content, response.length)
        if response.status in _RETRIED_STATUS:
            raise _Temporary(f"status {response.status}")
        if response.status != 200:
            raise RetrievalError(f"the search service refused the request (status {response.status})")
        try:
            return json.loads(content)
        except ValueError as error:
            raise RetrievalError("the search service did not answer in JSON") from error

    def _pass_breaker(self) -> None:
        with self._lock:
            self.counts["requests"] += 1
            if self._clock() < self._closed_until:
                self.counts["refused_by_breaker"] += 1
                self.counts["failures"] += 1
                raise RetrievalError("the search service is down; the call was not sent")

    def _report(self, *, failed: bool) -> None:
        with self._lock:
            self._failures = self._failures + 1 if failed else 0
            self.counts["failures"] += failed
            if self._failures >= self.breaker_failures:
                self._closed_until = self._clock() + self.breaker_seconds


def parse_result(answer: Any, n_queries: int, top_k: int) -> list[list[Hit]]:
    """Hits from a server's decoded answer, with or without scores.

    Raises:
        RetrievalError: the answer has another shape than the protocol's.
    """
    result = answer.get("result") if isinstance(answer, Mapping) else None
    if not isinstance(result, list) or len(result) != n_queries:
        raise RetrievalError(f"the search service must return one result list for each of {n_queries} queries")
    return [[_hit(entry) for entry in entries][:top_k] for entries in _lists(result)]


def _lists(result: list[Any]) -> list[list[Any]]:
    for entries in result:
        if not isinstance(entries, list):
            raise RetrievalError(f"each result must be a list of documents, but got {type(entries).__name__}")
    return result


def _hit(entry: Any) -> Hit:
    document, score = entry, math.nan
    if isinstance(entry, Mapping) and "document" in entry:
        document, score = entry["document"], entry.get("score", math.nan)
    try:
        return Hit(Passage.from_document(document), float(score))
    except (InvalidInputError, TypeError, ValueError) as error:
        raise RetrievalError(f"the search service returned something that is not a document: {error}") from error


def _encodable(query: str) -> str:
    """A lone surrogate cannot be sent as UTF-8; models can produce one."""
    return query.encode("utf-8", "replace").decode("utf-8")
