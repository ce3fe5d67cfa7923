"""A retrieval server that speaks Search-R1's protocol, on the standard library's threaded HTTP server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sized
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from viprl.errors import ConfigurationError, InvalidInputError
from viprl.tasks.search.batching import BatchingRetriever
from viprl.tasks.search.passages import Hit
from viprl.tasks.search.retrievers import RetrievalError, Retriever


@dataclass(frozen=True)
class ServerLimits:
    """What a request may ask for; anything larger is refused before it costs anything."""

    max_body_bytes: int = 2**20
    max_queries: int = 1024
    max_query_chars: int = 4096
    max_top_k: int = 100
    idle_seconds: float = 60.0


class _Refused(Exception):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


def check_server_settings(port: int, top_k: int, limits: ServerLimits | None = None) -> None:
    """Refuse what cannot be served, before an index is read.

    Raises:
        ConfigurationError: no port, or more passages than a request may ask for.
    """
    most = (limits or ServerLimits()).max_top_k
    if not 0 <= port <= 65535:
        raise ConfigurationError(f"0 <= port <= 65535 must hold, but got {port}")
    if not 1 <= top_k <= most:
        raise ConfigurationError(f"1 <= top_k <= {most} must hold, but got {top_k}")


class SearchServer:
    """Serves a retriever.

    ``POST /retrieve`` as in `viprl.tasks.search.http_client`; ``GET /health`` gives status, passages and counts, 503
    while shutting down. Errors are ``{"detail": ...}``: 400 malformed, 404 unknown path, 411/413 body without length
    or too large, 500 retriever failed, 503 overloaded or shutting down.

    Args:
        retriever: the back end.
        host: 127.0.0.1 by default: there is no authentication, so think before binding wider.
        port: 0 picks a free one; see `address`.
    """

    def __init__(
        self,
        retriever: Retriever,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        default_top_k: int = 5,
        limits: ServerLimits | None = None,
    ) -> None:
        self.limits = limits or ServerLimits()
        check_server_settings(port, default_top_k, self.limits)
        self.default_top_k = default_top_k
        self.retriever = BatchingRetriever(retriever)
        self.passages = len(retriever) if isinstance(retriever, Sized) else None
        self.started = time.monotonic()
        self.counts = {"requests": 0, "queries": 0, "refused": 0, "failed": 0}
        self.draining = False
        self._active = 0
        self._idle = threading.Condition()
        self._httpd = _HTTPServer((host, port), _Handler)
        self._httpd.search = self
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that are bound."""
        host, port = self._httpd.server_address[:2]
        return str(host), int(port)

    @property
    def url(self) -> str:
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def start(self) -> SearchServer:
        """Serve from a background thread."""
        self._thread = threading.Thread(target=self.serve_forever, name="search-server", daemon=True)
        self._thread.start()
        return self

    def serve_forever(self) -> None:
        """Serve until `stop` is called from another thread."""
        self._httpd.serve_forever(poll_interval=0.1)

    def stop(self, *, grace: float = 5.0) -> None:
        """Refuse new connections, let the requests in flight finish for up to `grace` seconds, then close."""
        self.draining = True
        self._httpd.shutdown()
        with self._idle:
            self._idle.wait_for(lambda: self._active == 0, timeout=grace)
        self._httpd.server_close()
        self.retriever.close()
        if self._thread is not None:
            self._thread.join(timeout=grace)

    def __enter__(self) -> SearchServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def health(self) -> dict[str, Any]:
        return {
            "status": "draining" if self.draining else "ok",
            "passages": self.passages,
            "uptime_seconds": round(time.monotonic() - self.started, 3),
            **self.counts,
        }

    def answer(self, body: bytes) -> dict[str, Any]:
        """The response to one request's body."""
        if self.draining:
            raise _Refused(503, "shutting down")
        queries, top_k, with_scores = self._parse(body)
        try:
            hits = self.retriever.retrieve(queries, top_k)
        except RetrievalError as error:
            raise _Refused(503, str(error)) from error
        except InvalidInputError as error:
            raise _Refused(400, str(error)) from error
        self.count(requests=1, queries=len(queries))
        return {"result": [[_entry(hit, with_scores) for hit in row] for row in hits]}

    def count(self, **amounts: int) -> None:
        with self._idle:
            for name, amount in amounts.items():
                self.counts[name] += amount

    def track(self, amount: int) -> None:
        """Requests in flight, for `stop`."""
        with self._idle:
            self._active += amount
            self._idle.notify_all()

    def _parse(self, body: bytes) -> tuple[list[str], int, bool]:
        try:
            request = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise _Refused(400, "the body must be JSON") from error
        if not isinstance(request, dict) or not isinstance(request.get("queries"), list):
            raise _Refused(400, "the body must be an object with a list `queries`")
        queries, top_k = request["queries"], request.get("topk")
        if not all(isinstance(query, str) for query in queries):
            raise _Refused(400, "every query must be a string")
        if len(queries) > self.limits.max_queries:
            raise _Refused(413, f"at most {self.limits.max_queries} queries, but got {len(queries)}")
        longest = max(map(len, queries), default=0)
        if longest > self.limits.max_query_chars:
            raise _Refused(413, f"a query must have at most {self.limits.max_query_chars} characters, not {longest}")
        top_k = self.default_top_k if top_k is None else top_k
        if isinstance(top_k, bool) or not isinstance(top_k, int) or not 1 <= top_k <= self.limits.max_top_k:
            raise _Refused(400, f"1 <= topk <= {self.limits.max_top_k} must hold, but got {top_k!r}")
        return queries, top_k, bool(request.get("return_scores", False))


def _entry(hit: Hit, with_score: bool) -> dict[str, Any]:
    document = hit.passage.to_document()
    return {"document": document, "score": hit.score} if with_score else document


class _HTTPServer(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 1024  # the default of 5 drops connections of parallel clients
    search: SearchServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no event of ours; anything else is counted by the handler."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _HTTPServer
    disable_nagle_algorithm = True

    def setup(self) -> None:
        self.timeout = self.server.search.limits.idle_seconds  # type: ignore[misc]  # a stalled client must not hold its thread for ever
        super().setup()

    def do_GET(self) -> None:
        if self.path.split("?")[0] in ("/", "/health", "/healthz"):
            search = self.server.search
            self._send(503 if search.draining else 200, search.health())
        else:
            self._send(404, {"detail": f"no such path: {self.path}"})

    def do_POST(self) -> None:
        search = self.server.search
        search.track(+1)
        try:
            self._send(200, search.answer(self._body()))
        except _Refused as refused:
            search.count(refused=1)
            self._send(refused.status, {"detail": refused.detail})
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception as error:
            search.count(failed=1)
            self._send(500, {"detail": f"the retriever failed: {type(error).__name__}"})
        finally:
            search.track(-1)

    def _body(self) -> bytes:
        limit = self.server.search.limits.max_body_bytes
        digits = self.headers.get("Content-Length", "")
        if not (digits.isascii() and digits.isdigit()):
            self.close_connection = True  # what follows on this connection cannot be delimited
            raise _Refused(411, "a Content-Length in decimal digits is needed")
        length = int(digits.lstrip("0")[:19] or 0)  # more digits are too large whatever they are
        if length > limit:
            self.close_connection = True
            self._discard(min(length, 8 * limit))  # a client that is still sending would not see the answer
            raise _Refused(413, f"the body must have at most {limit} bytes, but has {length} or more")
        body = self.rfile.read(length)
        if self.path.split("?")[0] != "/retrieve":
            raise _Refused(404, f"no such path: {self.path}")
        if len(body) != length:
            self.close_connection = True
            raise _Refused(400, "the body is shorter than its Content-Length")
        return body

    def _discard(self, count: int) -> None:
        while count > 0 and (piece := self.rfile.read1(min(count, 2**16))):  # type: ignore[attr-defined]
            count -= len(piece)

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        content = json.dumps(answer).encode()
        if self.server.search.draining:
            self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if status == 503:
            self.send_header("Retry-After", "1")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """No line per request; `health` has the counts."""
