"""One embeddings file: ids and vectors together, so that rows cannot slip."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from viprl._files import read_arrays, replacing
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
    """Write an .npz with ``prompt_ids``, ``embeddings`` (N, d), ``model``, ``fingerprint``, ``format``, atomically."""
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
    content = read_arrays(path)
    try:
        number = int(content["format"])
        ids = tuple(str(name) for name in content["prompt_ids"])
        result = EmbeddingFile(ids, content["embeddings"], str(content["model"]), str(content["fingerprint"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"{path} must be an embeddings file of `viprl embed`, but it holds {sorted(content)}: {error}"
        ) from error
    if number > FORMAT:
        raise InvalidInputError(f"format <= {FORMAT} must hold, but {path} has format {number}; a newer viprl wrote it")
    return result


def read_vectors(path: str | Path, ids: Sequence[str], rows: Sequence[int], count: int) -> NDArray[np.float32]:
    """(N, D) vectors of prompts, from an .npz with ids or an .npy in the order of a prompts file.

    Args:
        path: ``.npz`` with ``prompt_ids`` and ``embeddings`` (as ``viprl embed`` writes), or ``.npy`` with a row for
            each row of the prompts file.
        ids: N prompt ids.
        rows: (N,) the row of the prompts file that speaks for each id.
        count: rows of the prompts file.

    Raises:
        InvalidInputError: no such archive, the wrong number of rows, or ids without a vector.
    """
    content = read_arrays(path)
    names = [str(name) for name in content["prompt_ids"]] if "prompt_ids" in content else None
    vectors = content.get("embeddings", content.get(""))
    if vectors is None or (names is None) != ("" in content):
        raise InvalidInputError(
            f"{path} must be an .npy of vectors, or an .npz of `prompt_ids` and `embeddings`, but has {sorted(content)}"
        )
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or len(vectors) != (count if names is None else len(names)):
        raise InvalidInputError(
            f"embeddings must be numbers of shape ({count if names is None else len(names)}, D), a row a prompt, but "
            f"{path} holds {vectors.dtype} of shape {vectors.shape}"
        )
    where = list(rows)
    if names is not None:
        places = {name: row for row, name in enumerate(names)}
        absent = [prompt_id for prompt_id in ids if prompt_id not in places]
        if absent:
            raise InvalidInputError(
                f"every prompt must have an embedding, but {len(absent)} of {len(ids)} are not in {path} (first: "
                f"{absent[0]!r})"
            )
        where = [places[prompt_id] for prompt_id in ids]
    return np.asarray(vectors[np.asarray(where, dtype=np.int64)], dtype=np.float32)
