"""Searching ahead: TRL runs the tools of one rollout after the other, which is slow over a network."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from viprl.errors import InvalidInputError
from viprl.tasks.search.passages import Hit
from viprl.tasks.search.retrievers import Retriever, check_request


class PrefetchingRetriever:
    """Starts searches as soon as queries are known and hands out the results when they are asked for.

    `prefetch` is called while the step's completions are parsed (see `environment.prepare_tokenizer`), so the searches
    of all rollouts run in parallel; `retrieve` then waits for its own. Results are handed out once per `prefetch`;
    failures too, so errors reach the rollout that asked.

    Args:
        retriever: called from several threads.
        top_k: passages of a prefetched query; a `retrieve` with another number searches anew.
        threads: searches at a time.
        capacity: prefetched queries that may wait to be asked for; the oldest are forgotten.
    """

    def __init__(self, retriever: Retriever, *, top_k: int = 5, threads: int = 32, capacity: int = 65_536) -> None:
        if threads < 1 or capacity < 1:
            raise InvalidInputError(f"threads, capacity >= 1 must hold, but got ({threads}, {capacity})")
        self.retriever, self.top_k, self.capacity = retriever, top_k, capacity
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="search-prefetch")
        self._waiting: OrderedDict[str, list[Future[list[list[Hit]]]]] = OrderedDict()
        self._lock = threading.Lock()

    def prefetch(self, query: str) -> None:
        """Start searching for `query`, in the form in which the session will ask."""
        query = " ".join(query.split())
        if not query:
            return
        future = self._pool.submit(self.retriever.retrieve, [query], self.top_k)
        with self._lock:
            self._waiting.setdefault(query, []).append(future)
            while len(self._waiting) > self.capacity:
                self._waiting.popitem(last=False)

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """See `Retriever.retrieve`."""
        check_request(queries, top_k)
        return [hits for query in queries for hits in self._one(query, top_k)]

    def _one(self, query: str, top_k: int) -> list[list[Hit]]:
        future = None
        if top_k == self.top_k:
            with self._lock:
                futures = self._waiting.get(query)
                if futures:
                    future = futures.pop()
                    if not futures:
                        del self._waiting[query]
        return future.result() if future is not None else self.retriever.retrieve([query], top_k)

    def close(self) -> None:
        """Stop the threads; what waits is not searched."""
        self._pool.shutdown(wait=True, cancel_futures=True)
