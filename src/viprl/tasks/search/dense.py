"""Dense retrieval: sentence-transformers embeddings and exact inner-product search over a memory-mapped index."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viprl.errors import CheckpointError, InvalidInputError
from viprl.tasks.search.passages import Hit, Passage
from viprl.tasks.search.retrievers import check_request

_FORMAT = 1
MINILM = "all-MiniLM-L6-v2"
Encoder = Callable[[Sequence[str]], NDArray[np.float32]]


def prefixes(model: str) -> tuple[str, str]:
    """(query, passage) prefixes that a model was trained with: the E5 family needs them, others have none."""
    name = Path(model).name.lower()
    return ("query: ", "passage: ") if name.startswith(("e5-", "multilingual-e5")) else ("", "")


class DenseRetriever:
    """Exact cosine search: every passage is scored, so the only error is the embedding's.

    Args:
        passages: N passages.
        vectors: (N, D) unit rows, float16 or float32; may be a memory map.
        encode: maps texts to (B, D) rows (normalised here).
        query_prefix: put before each query.
        block: passages scored at a time; bounds the working memory to B x block numbers.
    """

    def __init__(
        self,
        passages: Sequence[Passage],
        vectors: NDArray[Any],
        encode: Encoder,
        *,
        query_prefix: str = "",
        block: int = 65_536,
    ) -> None:
        if vectors.ndim != 2 or len(vectors) != len(passages) or not len(passages):
            raise InvalidInputError(
                f"`vectors` must be (N, D) with N = {len(passages)} > 0 passages, but got shape {vectors.shape}"
            )
        self.passages = list(passages)
        self.vectors = vectors
        self.query_prefix = query_prefix
        self.block = block
        self._encode = encode
        self._lock = threading.Lock()  # tokenizers and models are not promised to be thread-safe

    def __len__(self) -> int:
        return len(self.passages)

    @classmethod
    def build(
        cls,
        passages: Sequence[Passage],
        *,
        model: str = MINILM,
        query_prefix: str | None = None,
        passage_prefix: str | None = None,
        encode: Encoder | None = None,
        batch_size: int = 64,
    ) -> DenseRetriever:
        """Embed the passages.

        Args:
            model: "all-MiniLM-L6-v2" (the packaged copy where installed), a hub id or a folder.
            query_prefix, passage_prefix: None = what the model's family needs (see `prefixes`).
            encode: replaces the model, for another embedding library.
        """
        query, passage = prefixes(model)
        query = query if query_prefix is None else query_prefix
        passage = passage if passage_prefix is None else passage_prefix
        encode = encode or sentence_encoder(model, batch_size=batch_size)
        vectors = _unit(encode([passage + p.contents for p in passages]))
        retriever = cls(passages, vectors, encode, query_prefix=query)
        retriever._settings = {"model": model, "query_prefix": query, "passage_prefix": passage}
        return retriever

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """See `Retriever.retrieve`; scores are cosines."""
        check_request(queries, top_k)
        if not queries:
            return []
        with self._lock:
            rows = _unit(self._encode([self.query_prefix + query for query in queries]))
        best_scores = np.full((len(queries), 0), -np.inf, np.float32)
        best_rows = np.zeros((len(queries), 0), np.int64)
        for start in range(0, len(self.vectors), self.block):
            part = np.asarray(self.vectors[start : start + self.block], np.float32)
            scores = np.concatenate([best_scores, rows @ part.T], axis=1)
            index = np.concatenate(
                [best_rows, np.broadcast_to(np.arange(len(part)) + start, (len(rows), len(part)))], 1
            )
            order = np.lexsort((index, -scores), axis=1)[:, :top_k]
            best_scores = np.take_along_axis(scores, order, axis=1)
            best_rows = np.take_along_axis(index, order, axis=1)
        return [
            [Hit(self.passages[i], float(s)) for i, s in zip(ids, scores, strict=True)]
            for ids, scores in zip(best_rows, best_scores, strict=True)
        ]

    _settings: dict[str, str] | None = None

    def save(self, folder: str | Path) -> None:
        """Write vectors (float16), passages and the model's name to `folder`."""
        if self._settings is None:
            raise InvalidInputError("only a retriever made by `build` or `load` knows its model and can be saved")
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        vectors = np.asarray(self.vectors, np.float16)
        np.save(target / "vectors.npy", vectors)
        rows = [{"id": p.id, "title": p.title, "text": p.text} for p in self.passages]
        meta = {"format": _FORMAT, **self._settings, "fingerprint": _fingerprint(vectors), "passages": rows}
        (target / "passages.json").write_text(json.dumps(meta), encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path, *, encode: Encoder | None = None) -> DenseRetriever:
        """Memory-map what `save` wrote; only the rows that a search touches are read.

        Raises:
            CheckpointError: another format, or vectors and passages that do not belong together.
        """
        source = Path(folder)
        try:
            saved = json.loads((source / "passages.json").read_text(encoding="utf-8"))
            vectors = np.load(source / "vectors.npy", mmap_mode="r")
        except (ValueError, EOFError, SyntaxError) as error:
            raise CheckpointError(f"an index must be whole, but {source} is damaged: {error}") from error
        if saved.get("format") != _FORMAT:
            raise CheckpointError(f"the index format must be {_FORMAT}, but {source} has {saved.get('format')!r}")
        if _fingerprint(vectors) != saved["fingerprint"] or len(vectors) != len(saved["passages"]):
            raise CheckpointError(f"vectors and passages of {source} must come from one `save`, but they differ")
        retriever = cls(
            [Passage(**row) for row in saved["passages"]],
            vectors,
            encode or sentence_encoder(saved["model"]),
            query_prefix=saved["query_prefix"],
        )
        retriever._settings = {key: saved[key] for key in ("model", "query_prefix", "passage_prefix")}
        return retriever


def sentence_encoder(model: str, *, batch_size: int = 64) -> Encoder:
    """An encoder from sentence-transformers, loaded at its first use; texts of similar length share a batch."""
    from viprl.embeddings.encoders import SentenceEncoder

    network = SentenceEncoder("packaged" if model == MINILM else model)

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        parts = [
            network.encode([texts[row] for row in order[start : start + batch_size]])
            for start in range(0, len(order), batch_size)
        ]
        vectors = np.concatenate(parts)
        restored = np.empty_like(vectors)
        restored[order] = vectors
        return restored

    return encode


def _unit(rows: NDArray[Any]) -> NDArray[np.float32]:
    vectors = np.asarray(rows, np.float32)
    lengths: NDArray[np.float32] = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return vectors / lengths


def _fingerprint(vectors: NDArray[Any]) -> str:
    """Shape and a spread of rows, so that checking a large index does not read all of it."""
    picks = np.unique(np.linspace(0, len(vectors) - 1, 64).astype(int))
    digest = hashlib.sha256(str(vectors.shape).encode())
    digest.update(np.ascontiguousarray(vectors[picks], np.float16).tobytes())
    return digest.hexdigest()[:16]
