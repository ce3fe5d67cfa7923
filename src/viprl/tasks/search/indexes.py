"""The choice of a back end from a short specification; saved indexes told from corpora, and either opened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from viprl.errors import InvalidInputError
from viprl.tasks.search.bm25 import BM25Retriever
from viprl.tasks.search.corpus import load_corpus
from viprl.tasks.search.dense import DenseRetriever
from viprl.tasks.search.http_client import HttpRetriever
from viprl.tasks.search.passages import Passage
from viprl.tasks.search.retrievers import Retriever


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
    if kind.startswith(("http://", "https://")):
        if corpus is not None:
            raise InvalidInputError(f"a retrieval server brings its own corpus, but got {kind} and corpus={corpus!r}")
        return HttpRetriever(kind, **options)
    if corpus is None:
        raise InvalidInputError(f"the retriever {kind!r} needs a corpus, but got none")
    passages = load_corpus(corpus) if isinstance(corpus, str | Path) else list(corpus)
    if kind == "bm25":
        return BM25Retriever(passages, **options)
    name, _, model = kind.partition(":")
    if name == "dense":
        if model:
            options["model"] = model
        return DenseRetriever.build(passages, **options)
    raise InvalidInputError(f"a retriever must be 'bm25', 'dense', 'dense:MODEL' or a URL, but got {kind!r}")


def open_index(path: str | Path, kind: str = "bm25") -> BM25Retriever | DenseRetriever:
    """A local retriever over `path`: a folder that `save` wrote (memory-mapped), else a corpus to index.

    Raises:
        InvalidInputError: `kind` names no local back end, or the saved index is of the other kind.
    """
    folder = Path(path)
    if (folder / "passages.json").exists():
        dense = (folder / "vectors.npy").exists()
        if dense != kind.startswith("dense"):
            raise InvalidInputError(
                f"{folder} holds a {'dense' if dense else 'BM25'} index, but the retriever asked for is {kind!r}"
            )
        return DenseRetriever.load(folder) if dense else BM25Retriever.load(folder)
    retriever = build_retriever(kind, folder)
    if not isinstance(retriever, BM25Retriever | DenseRetriever):
        raise InvalidInputError(f"a local index must be 'bm25', 'dense' or 'dense:MODEL', but got {kind!r}")
    return retriever
