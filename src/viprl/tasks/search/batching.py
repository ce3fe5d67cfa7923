"""Many small requests answered as few large ones, for embedding models that are fast only in batches."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from viprl.tasks.search.passages import Hit
from viprl.tasks.search.retrievers import RetrievalError, Retriever, check_request


@dataclass
class _Request:
    queries: list[str]
    top_k: int
    future: Future[list[list[Hit]]] = field(default_factory=Future)


class BatchingRetriever:
    """One worker thread serves all callers: while it is busy, requests pile up and form the next batch.

    There is no waiting for company: a lone request is served at once.

    Args:
        retriever: the back end; called from one thread only.
        max_queries: queries of a batch.
        max_pending: requests that may wait; more are refused with `RetrievalError`.
    """

    def __init__(self, retriever: Retriever, *, max_queries: int = 256, max_pending: int = 4096) -> None:
        self.retriever = retriever
        self.max_queries = max_queries
        self._queue: queue.Queue[_Request | None] = queue.Queue(max_pending)
        self._closed = False
        self._worker = threading.Thread(target=self._serve, name="search-batches", daemon=True)
        self._worker.start()
        self.batches = 0

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """See `Retriever.retrieve`."""
        check_request(queries, top_k)
        request = _Request(list(queries), top_k)
        if self._closed:
            raise RetrievalError("the search service is shutting down")
        try:
            self._queue.put_nowait(request)
        except queue.Full:
            raise RetrievalError("the search service is overloaded") from None
        return request.future.result()

    def close(self) -> None:
        """Serve what waits, then stop the worker."""
        self._closed = True
        self._queue.put(None)
        self._worker.join(timeout=30)

    def _serve(self) -> None:
        stopping = False
        while not stopping:
            first = self._queue.get()
            if first is None:
                return
            batch, size = [first], len(first.queries)
            while size < self.max_queries:
                try:
                    request = self._queue.get_nowait()
                except queue.Empty:
                    break
                if request is None:
                    stopping = True
                    break
                batch.append(request)
                size += len(request.queries)
            self._answer(batch)

    def _answer(self, batch: list[_Request]) -> None:
        self.batches += 1
        try:
            hits = self.retriever.retrieve([q for r in batch for q in r.queries], max(r.top_k for r in batch))
        except Exception as error:
            if len(batch) == 1:
                batch[0].future.set_exception(error)
                return
            for request in batch:  # one bad request must not fail its neighbours
                self._answer([request])
            return
        start = 0
        for request in batch:
            part = hits[start : start + len(request.queries)]
            start += len(request.queries)
            request.future.set_result([row[: request.top_k] for row in part])
