"""BM25 over a local corpus, with the bm25s library: no model, no server."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from viprl.errors import CheckpointError, InvalidInputError, MissingDependencyError
from viprl.tasks.search.passages import Hit, Passage
from viprl.tasks.search.retrievers import check_request

_WORD = re.compile(r"\w+", re.UNICODE)
_FORMAT = 1


def words(text: str) -> list[str]:
    """Lower-case words, of any script; no stop words and no stemming, so that names and numbers stay searchable."""
    return _WORD.findall(text.lower())


class BM25Retriever:
    """Okapi BM25 in Lucene's form.

    score(q, d) = sum over the words w of q (counted with repetition) of
    log(1 + (N - n_w + 1/2) / (n_w + 1/2)) * f / (f + k1 (1 - b + b |d| / mean |d|)),
    with f the count of w in d, n_w the number of passages with w, N the number of passages
    (Robertson and Zaragoza 2009; the variant without the constant factor k1 + 1 is Lucene 8's).

    Args:
        passages: what is searched: title and text of each.
        k1, b: saturation and length normalisation.
    """

    def __init__(self, passages: Sequence[Passage], *, k1: float = 1.5, b: float = 0.75) -> None:
        if not passages:
            raise InvalidInputError("a corpus must hold at least one passage, but got none")
        if not (k1 >= 0 and 0 <= b <= 1):
            raise InvalidInputError(f"k1 >= 0 and 0 <= b <= 1 must hold, but got (k1={k1}, b={b})")
        self.passages = list(passages)
        self.k1, self.b = k1, b
        tokens = [words(passage.contents) for passage in self.passages]
        if not any(tokens):
            raise InvalidInputError("a corpus must hold at least one word, but every passage is empty")
        self._index = _library().BM25(k1=k1, b=b, method="lucene")
        self._index.index(tokens, show_progress=False)

    def __len__(self) -> int:
        return len(self.passages)

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """See `Retriever.retrieve`; passages that share no word with the query are never returned."""
        check_request(queries, top_k)
        return [self._top(self.scores(query), top_k) for query in queries]

    def scores(self, query: str) -> np.ndarray:
        """(N,) scores of one query against every passage."""
        known = [word for word in words(query) if word in self._index.vocab_dict]
        if not known:
            return np.zeros(len(self.passages), np.float32)
        scores: np.ndarray = self._index.get_scores(known)
        return scores

    def _top(self, scores: np.ndarray, top_k: int) -> list[Hit]:
        found = np.flatnonzero(scores > 0)
        if len(found) > top_k:  # everything above the k-th score, then ties in corpus order
            threshold = np.partition(scores[found], len(found) - top_k)[len(found) - top_k]
            above = found[scores[found] > threshold]
            ties = found[scores[found] == threshold][: top_k - len(above)]
            found = np.concatenate([above, ties])
        order = found[np.lexsort((found, -scores[found]))]
        return [Hit(self.passages[i], float(scores[i])) for i in order]

    def save(self, folder: str | Path) -> None:
        """Write index and passages to `folder`; `load` maps the index into memory instead of reading it."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        self._index.save(str(target), show_progress=False)
        rows = [{"id": p.id, "title": p.title, "text": p.text} for p in self.passages]
        (target / "passages.json").write_text(
            json.dumps({"format": _FORMAT, "k1": self.k1, "b": self.b, "passages": rows}), encoding="utf-8"
        )

    @classmethod
    def load(cls, folder: str | Path) -> BM25Retriever:
        """Read what `save` wrote.

        Raises:
            CheckpointError: another format, or index and passages that do not belong together.
        """
        source = Path(folder)
        saved = json.loads((source / "passages.json").read_text(encoding="utf-8"))
        if saved.get("format") != _FORMAT:
            raise CheckpointError(f"the index format must be {_FORMAT}, but {source} has {saved.get('format')!r}")
        retriever = cls.__new__(cls)
        retriever.passages = [Passage(**row) for row in saved["passages"]]
        retriever.k1, retriever.b = saved["k1"], saved["b"]
        retriever._index = _library().BM25.load(str(source), mmap=True, load_vocab=True)
        count = int(retriever._index.scores["num_docs"])
        if count != len(retriever.passages):
            raise CheckpointError(
                f"index and passages must have one length, but got {count} and {len(retriever.passages)} in {source}"
            )
        return retriever


def _library() -> Any:
    try:
        import bm25s
    except ImportError as error:
        raise MissingDependencyError.of("BM25 search", "bm25s") from error
    return bm25s
