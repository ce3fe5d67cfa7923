"""Vectors on disk, by the SHA-256 of the text, in one folder per encoder fingerprint.

    <cache_dir>/<fingerprint>/about.json         encoder name, dimension, window, format
    <cache_dir>/<fingerprint>/part-<hash>.npz    keys (n, 32) uint8, vectors (n, D) float32, tokens (n,) int64

Parts are written under a temporary name and renamed, never changed afterwards, and named by their content: processes
may share a cache, and an interrupted run keeps what it had finished.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from viprl._files import replacing, write_text
from viprl.embeddings.encoders import Encoder

FORMAT = 1


class CacheWarning(UserWarning):
    """A damaged part of the cache was left out; its texts are embedded again."""


def text_key(text: str) -> bytes:
    """32 bytes that stand for a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


class EmbeddingCache:
    """The vectors of one encoder; in memory only where ``folder`` is None."""

    def __init__(self, cache_dir: str | Path | None, encoder: Encoder) -> None:
        self.folder: Path | None = None
        self._vectors: dict[bytes, NDArray[np.float32]] = {}
        self._tokens: dict[bytes, int] = {}
        self._encoder = encoder
        if cache_dir is None:
            return
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", encoder.fingerprint())
        self.folder = Path(cache_dir).expanduser() / f"v{FORMAT}-{name}"
        self.folder.mkdir(parents=True, exist_ok=True)
        for part in sorted(self.folder.glob("part-*.npz")):
            self._read(part)

    def __contains__(self, key: bytes) -> bool:
        return key in self._vectors

    def __len__(self) -> int:
        return len(self._vectors)

    def window(self) -> int | None:
        """The encoder's window, from disk where it was noted: the model need not be loaded if nothing is missing."""
        if self.folder is None:
            return self._encoder.window
        path = self.folder / "about.json"
        try:
            window = json.loads(path.read_text("utf-8"))["window"]
        except (OSError, ValueError, KeyError, TypeError):
            window = self._encoder.window
            about = {
                "format": FORMAT,
                "encoder": self._encoder.name,
                "fingerprint": self._encoder.fingerprint(),
                "window": window,
            }
            write_text(path, json.dumps(about, indent=1))
        return None if window is None else int(window)

    def vectors(self, keys: Sequence[bytes]) -> NDArray[np.float32]:
        """(N, D) of keys that are all known."""
        return np.stack([self._vectors[key] for key in keys]).astype(np.float32, copy=False)

    def tokens(self, keys: Sequence[bytes]) -> NDArray[np.int64]:
        """(N,) token counts of keys that are all known."""
        return np.array([self._tokens[key] for key in keys], dtype=np.int64)

    def add(self, keys: Sequence[bytes], vectors: NDArray[np.float32], tokens: NDArray[np.int64]) -> None:
        """Remember vectors (n, D) and token counts (n,), on disk where there is a folder."""
        if not len(keys):
            return
        self._remember(keys, vectors, tokens)
        if self.folder is None:
            return
        packed = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(-1, 32)
        name = hashlib.sha256(b"".join(keys)).hexdigest()[:16]
        with replacing(self.folder / f"part-{name}.npz") as file:
            np.savez(file, keys=packed, vectors=vectors, tokens=tokens)

    def _read(self, part: Path) -> None:
        try:
            with np.load(part, allow_pickle=False) as data:
                keys, vectors, tokens = data["keys"], data["vectors"], data["tokens"]
            if keys.shape != (len(vectors), 32) or tokens.shape != (len(vectors),) or vectors.ndim != 2:
                raise ValueError(f"shapes {keys.shape}, {vectors.shape}, {tokens.shape}")
        except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
            warnings.warn(f"{part} is damaged ({error}); its texts are embedded again", CacheWarning, stacklevel=4)
            return
        self._remember([key.tobytes() for key in keys], vectors, tokens)

    def _remember(self, keys: Sequence[bytes], vectors: NDArray[np.float32], tokens: NDArray[np.int64]) -> None:
        self._vectors.update(zip(keys, vectors, strict=True))
        self._tokens.update(zip(keys, (int(count) for count in tokens), strict=True))
