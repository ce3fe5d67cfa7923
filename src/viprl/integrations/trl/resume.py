"""What a checkpoint needs beyond TRL's so that a resumed run equals the uninterrupted one.

Beside the files of transformers lie, in the same checkpoint folder and written before ``trainer_state.json``:

* ``viprl_allocator.npz``: the allocator's state (main process);
* ``viprl_trainer.json``: the position inside the generation window and the shape of the run (main process);
* ``viprl_window_<rank>.pt``: the rollouts of the unfinished window, where there is one (every process).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch

from viprl._files import replacing, write_text
from viprl.errors import CheckpointError

FORMAT = 1
ALLOCATOR_FILE = "viprl_allocator.npz"
POSITION_FILE = "viprl_trainer.json"
TRAINER_STATE = "trainer_state.json"

_CHECKPOINT = re.compile(r"^checkpoint-(\d+)$")


def is_whole(folder: Path) -> bool:
    """True where a checkpoint folder has a readable trainer state, which is written last."""
    try:
        json.loads((folder / TRAINER_STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


def last_whole_checkpoint(output_dir: str | Path) -> str | None:
    """The newest checkpoint that was written to the end; a run killed while saving leaves one that was not."""
    root = Path(output_dir)
    found = []
    for folder in root.iterdir() if root.is_dir() else ():
        match = _CHECKPOINT.match(folder.name)
        if match and folder.is_dir():
            found.append((int(match[1]), folder))
    return next((str(folder) for _, folder in sorted(found, reverse=True) if is_whole(folder)), None)


def save_position(
    folder: str | Path, *, micro_step: int, window: int, processes: int, candidates: dict[str, Any] | None = None
) -> None:
    """Write the position file.

    Args:
        folder: of the checkpoint.
        micro_step: forward-backward passes so far.
        window: passes that one generation batch serves (steps_per_generation x num_iterations).
        processes: of the run.
        candidates: how prompts are chosen and which candidates come next; read by ``load_candidates``.
    """
    numbers = {"format": FORMAT, "micro_step": micro_step, "window": window, "processes": processes}
    write_text(Path(folder) / POSITION_FILE, json.dumps({**numbers, "candidates": candidates}))


def load_position(folder: str | Path, *, window: int, processes: int) -> int | None:
    """The micro-step to continue from; None for a checkpoint that has no position (written by plain TRL).

    Raises:
        CheckpointError: damaged, of another format, or inside a window that this run cannot continue.
    """
    path = Path(folder) / POSITION_FILE
    if not path.exists():
        return None
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        version, micro_step = saved["format"], int(saved["micro_step"])
        shape = (int(saved["window"]), int(saved["processes"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} must hold a trainer position, but reading it failed: {error}") from error
    if version != FORMAT:
        raise CheckpointError(f"trainer position format {FORMAT} must hold, but {path} has format {version}")
    if micro_step % shape[0] and shape != (window, processes):
        raise CheckpointError(
            "a checkpoint inside a generation window can only be continued with the same window and processes, but "
            f"it has (window, processes)={shape} and the run {(window, processes)}"
        )
    return micro_step


def load_candidates(folder: Path) -> dict[str, Any] | None:
    """What ``save_position`` was told; None where it was nothing."""
    saved = json.loads((folder / POSITION_FILE).read_text(encoding="utf-8"))
    found: dict[str, Any] | None = saved.get("candidates")
    return found


def save_window(
    folder: str | Path, rank: int, buffered: list[dict[str, Any]] | None, extras: dict[str, Any] | None = None
) -> None:
    """Write this process's buffered rollouts, and what else the unfinished window needs (tensors and numbers)."""
    with replacing(_window_path(folder, rank)) as file:
        torch.save({"format": FORMAT, "buffered": buffered, "extras": extras or {}}, file)


def load_window(
    folder: str | Path, rank: int, device: torch.device
) -> tuple[list[dict[str, Any]] | None, dict[str, Any]]:
    """Read this process's buffered rollouts and the window's extras.

    Raises:
        CheckpointError: absent, damaged or of another format.
    """
    path = _window_path(folder, rank)
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        version, buffered, extras = saved["format"], saved["buffered"], saved["extras"]
    except Exception as error:  # torch.load raises many kinds for damaged files
        raise CheckpointError(
            f"a checkpoint inside a generation window must hold its rollouts, but reading {path} failed: {error}"
        ) from error
    if version != FORMAT:
        raise CheckpointError(f"window format {FORMAT} must hold, but {path} has format {version}")
    if buffered is not None:
        buffered = [{k: v.to(device) if torch.is_tensor(v) else v for k, v in batch.items()} for batch in buffered]
    return buffered, extras


def skip_epochs(sampler: Any, epochs: int) -> None:
    """Bring TRL's sampler to a later epoch: its generator draws one permutation per epoch."""
    if getattr(sampler, "shuffle", False):
        for _ in range(epochs):
            torch.randperm(sampler.num_samples, generator=sampler.generator)


def stream_position(checkpoint: Path, accumulation_steps: int) -> tuple[int, int]:
    """Passes over a stream that are complete, and batches of the next one.

    The length of a stream is not known: transformers counts all batches of the run as one epoch, yet starts a new one
    whenever the stream ends. Its own resume takes the whole count for batches of the first pass; the trainer state's
    fractional epoch has both numbers.
    """
    saved = json.loads((checkpoint / TRAINER_STATE).read_text(encoding="utf-8"))
    passes = int(saved["epoch"] or 0.0)
    return passes, round((saved["epoch"] - passes) * saved["max_steps"] * accumulation_steps)


def _window_path(folder: str | Path, rank: int) -> Path:
    return Path(folder) / f"viprl_window_{rank}.pt"
