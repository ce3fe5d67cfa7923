"""One embeddings file: ids and vectors together, so that rows cannot slip."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from viprl._files import replacing
from viprl.errors import InvalidInputError

FORMAT = 1


class EmbeddingFile(NamedTuple):
    """Contents of an embeddings file: N ids, (N, D) vectors, the model and its fingerprint."""

    prompt_ids: tuple[str, ...]
    embeddings: NDArray[np.float32]
    model: str
    fingerprint: str


def save_embeddings(
    path: str | Path, prompt_ids: Sequence[str], embeddings: NDArray[np.float32], *, model: str, fingerprint: str
) -> None:
    """Write an .npz with ``prompt_ids``, ``embeddings``, ``model``, ``fingerprint``, ``format``, atomically."""
    path = Path(path)
    if path.suffix != ".npz":
        raise InvalidInputError(f"an embeddings file must end in .npz, but got {path}")
    if len(prompt_ids) != len(embeddings):
        raise InvalidInputError(f"one id per vector is needed, but got {len(prompt_ids)} and {len(embeddings)}")
    with replacing(path) as file:
        np.savez(
            file,
            prompt_ids=np.array(list(prompt_ids), dtype=np.str_),
            embeddings=np.asarray(embeddings, dtype=np.float32),
            model=np.array(model),
            fingerprint=np.array(fingerprint),
            format=np.array(FORMAT),
        )


def load_embeddings(path: str | Path) -> EmbeddingFile:
    """Read what ``save_embeddings`` wrote.

    Raises:
        InvalidInputError: not such a file, or of a newer format.
    """
    try:
        with np.load(path, allow_pickle=False) as data:
            content = {name: data[name] for name in data.files}
        number = int(content["format"])
        ids = tuple(str(name) for name in content["prompt_ids"])
        result = EmbeddingFile(ids, content["embeddings"], str(content["model"]), str(content["fingerprint"]))
    except FileNotFoundError:
        raise
    except Exception as error:  # numpy raises many kinds on a file that is no archive
        raise InvalidInputError(
            f"{path} must be an embeddings file of `viprl embed`, but it is not: {error}"
        ) from error
    if number > FORMAT:
        raise InvalidInputError(f"format <= {FORMAT} must hold, but {path} has format {number}; a newer viprl wrote it")
    return result
