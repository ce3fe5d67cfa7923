"""The mixin that makes a resumed run equal the uninterrupted one; see ``resume`` for what it writes.

Plain TRL replays the first epoch's prompts after a resume in a later epoch (its sampler starts over) and samples the
generation window anew when stopped inside it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from viprl.checkpoint import read_state
from viprl.history import HistoryWriter, parts
from viprl.integrations.trl import resume
from viprl.integrations.trl.candidates import SETTINGS, Pool, same_selection

logger = logging.getLogger("viprl")


class ResumableMixin:
    """Saves and restores the allocator, the sampler's epoch, the buffered window and the history's length."""

    allocator: Any
    history: HistoryWriter | None
    args: Any  # from here on the trainer's
    accelerator: Any
    num_iterations: Any
    _pool: Pool | None
    train_dataset: Any
    _on_main: Callable[[Callable[[], Any]], Any]
    _train_sampler: Any = None

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        self._train_sampler = super()._get_train_sampler(dataset)  # type: ignore[misc]
        return self._train_sampler

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As the parent's; ``resume_from_checkpoint=True`` takes the newest checkpoint that is whole."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = resume.last_whole_checkpoint(self.args.output_dir)
            if resume_from_checkpoint is None:
                raise ValueError(f"No valid checkpoint found in output directory ({self.args.output_dir})")
        try:
            result = super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]
        finally:
            if self.history is not None:
                self.history.flush()
        if self.allocator is not None:
            used, steps = self.allocator.policy_steps, self.allocator.step
            quiet = used > 0 or steps == 0 or self.args.policy == "uniform"
            level = logging.INFO if quiet else logging.WARNING
            logger.log(level, "viprl: the policy's groups were used in %d of %d steps", used, steps)
        return result

    def _save_rng_state(self, output_dir: str) -> None:
        """Write our part of a checkpoint: transformers calls this last before it writes the trainer state."""
        super()._save_rng_state(output_dir)  # type: ignore[misc]
        window = self.args.steps_per_generation * self.num_iterations
        if self._step % window:
            rank = self.accelerator.process_index
            resume.save_window(output_dir, rank, self._buffered_inputs, self._window_extras())

        def save() -> None:
            self.allocator.save(Path(output_dir) / resume.ALLOCATOR_FILE)
            if self.history is not None:
                self.history.flush()
            resume.save_position(
                output_dir,
                micro_step=self._step,
                window=window,
                processes=self.accelerator.num_processes,
                candidates=self._candidates_state(),
            )

        self._on_main(save)

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        epochs, steps = super()._init_training_state(*args, **kwargs)  # type: ignore[misc]
        checkpoint = kwargs.get("resume_from_checkpoint", args[3] if len(args) > 3 else None)
        if checkpoint is not None:
            if not hasattr(self.train_dataset, "__len__") and not self.args.ignore_data_skip:
                epochs, steps = resume.stream_position(Path(checkpoint), self.args.gradient_accumulation_steps)
            self._restore(Path(checkpoint), epochs)
        if self.history is not None:
            if self.allocator.step == 0 and parts(self.history.folder):
                self.history.set_aside()
            self.history.cut_back(self.allocator.step)
        return epochs, steps

    def _restore(self, checkpoint: Path, epochs: int) -> None:
        resume.skip_epochs(self._train_sampler, epochs)
        window = self.args.steps_per_generation * self.num_iterations
        rank, processes = self.accelerator.process_index, self.accelerator.num_processes
        position = resume.load_position(checkpoint, window=window, processes=processes)
        if position is None:
            warnings.warn(
                f"{checkpoint} was not written by an adaptive trainer: the allocator starts cold", stacklevel=2
            )
            return
        self._step = position
        self._buffered_inputs = None
        if position % window:
            self._buffered_inputs, extras = resume.load_window(checkpoint, rank, self.accelerator.device)
        self._on_main(lambda: self._restore_candidates(resume.load_candidates(checkpoint)))
        self._on_main(lambda: self.allocator.load_state_dict(read_state(checkpoint / resume.ALLOCATOR_FILE)))
        if position % window:
            self._restore_window_extras(extras)

    def _candidates_state(self) -> dict[str, Any]:
        """How prompts are chosen and which candidates come next."""
        cursor = {} if self._pool is None else self._pool.state_dict()
        return {**{name: getattr(self.args, name) for name in SETTINGS}, **cursor}

    def _restore_candidates(self, saved: Mapping[str, Any] | None) -> None:
        same_selection(saved, self.args)
        if self._pool is not None and saved is not None:
            self._pool.load_state_dict(saved)

    def _window_extras(self) -> dict[str, Any]:
        """What a subclass keeps for the rest of an unfinished window: tensors, numbers, lists."""
        return {}

    def _restore_window_extras(self, extras: dict[str, Any]) -> None:
        """Take back ``_window_extras()``."""
