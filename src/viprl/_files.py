"""Files that are whole or not there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from viprl.errors import InvalidInputError


@contextmanager
def replacing(path: str | os.PathLike[str], mode: str = "wb") -> Iterator[IO[Any]]:
    """A file to write that takes ``path``'s place once the block has ended: until then, and where the block raises,
    a reader finds what was there before.

    Args:
        path: where the file will lie; its folder is created. The temporary file lies beside it, hidden.
        mode: "wb", or "w" for UTF-8 text.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file; see ``replacing``."""
    with replacing(path, "w") as file:
        file.write(text)


def read_arrays(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz by name, or that of a .npy under the empty name; no pickles.

    Raises:
        InvalidInputError: a file that is neither, or is cut off or damaged.
        OSError: no such file, or it may not be read.
    """
    with open(path, "rb") as file:
        try:
            data = np.load(file, allow_pickle=False)
            return {"": data} if isinstance(data, np.ndarray) else {name: data[name] for name in data.files}
        except Exception as error:  # numpy, zipfile and zlib raise many kinds on what is no array
            raise InvalidInputError(f"{path} must be a whole .npy or .npz file, but it is not: {error}") from error


def default_cache_dir() -> Path:
    """``$VIPRL_CACHE``, else ``$XDG_CACHE_HOME/viprl``, else ``~/.cache/viprl``."""
    if os.environ.get("VIPRL_CACHE"):
        return Path(os.environ["VIPRL_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "viprl"
