"""One interface for every retriever, and the choice of a back end from a short specification."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from viprl.errors import InvalidInputError, ViprlError
from viprl.tasks.search.passages import Hit, Passage


class RetrievalError(ViprlError, RuntimeError):
    """The retriever could not answer (server down, too slow, or speaking another protocol)."""


@runtime_checkable
class Retriever(Protocol):
    """Finds passages. Implementations are safe to call from several threads."""

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """At most `top_k` hits for each query, best first, ties to the earlier passage.

        Raises:
            RetrievalError: no answer can be given; the message may be shown to a model.
        """
        ...


def check_request(queries: Sequence[str], top_k: int) -> None:
    """Shared validation of `retrieve`'s arguments."""
    if isinstance(queries, str):
        raise InvalidInputError("`queries` must be a sequence of strings, but got one string")
    if top_k < 1:
        raise InvalidInputError(f"top_k >= 1 must hold, but got {top_k}")


def build_retriever(
    kind: str,
    corpus: str | Path | Sequence[Passage] | None = None,
    **options: Any,
) -> Retriever:
    """A retriever from the words of a command line or a config file.

    Args:
        kind: "bm25", "dense", "dense:MODEL" (a hub id or a folder), or an http(s) URL of a retrieval server.
        corpus: passages, or a path for `load_corpus`; not for URLs.
        options: passed on to the back end.

    Raises:
        InvalidInputError: unknown kind, or a corpus missing or superfluous.
    """
    from viprl.tasks.search.corpus import load_corpus

    if kind.startswith(("http://", "https://")):
        from viprl.tasks.search.http_client import HttpRetriever

        if corpus is not None:
            raise InvalidInputError(f"a retrieval server brings its own corpus, but got {kind} and corpus={corpus!r}")
        return HttpRetriever(kind, **options)
    if corpus is None:
        raise InvalidInputError(f"the retriever {kind!r} needs a corpus, but got none")
    passages = load_corpus(corpus) if isinstance(corpus, str | Path) else list(corpus)
    if kind == "bm25":
        from viprl.tasks.search.bm25 import BM25Retriever

        return BM25Retriever(passages, **options)
    name, _, model = kind.partition(":")
    if name == "dense":
        from viprl.tasks.search.dense import DenseRetriever

        if model:
            options["model"] = model
        return DenseRetriever.build(passages, **options)
    raise InvalidInputError(f"a retriever must be 'bm25', 'dense', 'dense:MODEL' or a URL, but got {kind!r}")
