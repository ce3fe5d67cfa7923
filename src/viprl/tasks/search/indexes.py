"""Saved indexes: telling them from corpora, and opening either."""

from __future__ import annotations

from pathlib import Path

from viprl.errors import InvalidInputError
from viprl.tasks.search.bm25 import BM25Retriever
from viprl.tasks.search.dense import DenseRetriever
from viprl.tasks.search.retrievers import build_retriever


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
