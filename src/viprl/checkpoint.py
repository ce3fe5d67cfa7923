"""State <-> one file: a zip of numpy arrays beside a JSON tree, written atomically, read without pickle."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from viprl._files import replacing
from viprl.errors import CheckpointError

FORMAT = 3

_TREE = "tree"


def write_state(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write a state dict (arrays, numbers, strings, None, lists, dicts with string keys) ; the file is whole or
    not there.

    Raises:
        CheckpointError: the state holds something that cannot be stored exactly.
    """
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    tree = json.dumps({"format": FORMAT, "state": _pack(state, arrays, "state")})
    with replacing(path) as file:
        np.savez(file, allow_pickle=False, **{_TREE: np.frombuffer(tree.encode(), np.uint8), **arrays})


def read_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The state dict that ``write_state`` wrote.

    Raises:
        FileNotFoundError: no such file.
        CheckpointError: the file is damaged, no viprl checkpoint, or of another format.
    """
    try:
        with np.load(Path(path), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        tree = json.loads(arrays.pop(_TREE).tobytes())
        written = tree["format"]
    except FileNotFoundError:
        raise
    except (KeyError, TypeError, ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path} must be a whole viprl checkpoint, but reading it failed: {error}") from error
    if written != FORMAT:
        raise CheckpointError(f"checkpoint format {FORMAT} must hold, but {path} has format {written}")
    state: dict[str, Any] = _unpack(tree["state"], arrays)
    return state


def _pack(value: Any, arrays: dict[str, np.ndarray[Any, Any]], where: str) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            raise CheckpointError(f"state must hold no arrays of objects, but {where} is one")
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {"__array__": name}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise CheckpointError(f"state must have string keys, but {where} has {sorted(map(type, value), key=str)}")
        return {key: _pack(item, arrays, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        if all(isinstance(item, (str, int, float)) for item in value):
            return list(value)
        return [_pack(item, arrays, f"{where}[{i}]") for i, item in enumerate(value)]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise CheckpointError(f"state must hold arrays, numbers, strings, lists and dicts, but {where} is {type(value)}")


def _unpack(value: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    if isinstance(value, dict):
        if set(value) == {"__array__"}:
            return arrays[value["__array__"]]
        return {key: _unpack(item, arrays) for key, item in value.items()}
    if isinstance(value, list):
        return [_unpack(item, arrays) if isinstance(item, (dict, list)) else item for item in value]
    return value
