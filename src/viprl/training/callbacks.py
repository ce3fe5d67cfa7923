"""What a run does beside training: records numbers, evaluates on held-out prompts, stops cleanly."""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import TrainerCallback

from viprl._files import write_text
from viprl.errors import ViprlError
from viprl.reports.progress import Progress
from viprl.tasks.heldout import HeldOut

SHOWN = {"reward": "reward", "viprl/variance_ratio": "variance ratio"}


class MetricsFile:
    """Rows of numbers as JSON lines; cut back to a checkpoint's step on resume."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row; numbers that are not finite become null."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({key: _json_value(value) for key, value in row.items()}, allow_nan=False) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All rows; a last line that was cut off by a crash is left out."""
        if not self.path.exists():
            return []
        rows = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
        return rows

    def cut_back(self, last_step: int) -> None:
        """Keep the rows up to ``last_step``."""
        rows = [row for row in self.read() if row["step"] <= last_step]
        write_text(self.path, "".join(json.dumps(row) + "\n" for row in rows))


class Recorder(TrainerCallback):
    """Writes every log of the trainer to the metrics file, with the time that the step took.

    Args:
        metrics: None on all processes but the first.
        budget: rollouts of a step.
        progress: shown numbers and the bar.
    """

    def __init__(self, metrics: MetricsFile | None, budget: int, progress: Progress) -> None:
        self._metrics, self._budget, self._progress = metrics, budget, progress
        self._begun = self._step_seconds = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begun = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._step_seconds = time.perf_counter() - self._begun

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self._metrics is None or not logs or "reward" not in logs:
            return
        rollouts = state.global_step * self._budget
        self._metrics.write(
            {"step": state.global_step, "rollouts": rollouts, "step_seconds": self._step_seconds, **logs}
        )
        shown = {name: logs[key] for key, name in SHOWN.items() if isinstance(logs.get(key), int | float)}
        self._progress.update(state.global_step, **shown)


class HeldOutEvaluation(TrainerCallback):
    """Held-out success rate before the first step, every ``every`` steps and after the last.

    Args:
        evaluate: model -> HeldOut; called on every process (each takes a share and receives the whole).
        metrics: None on all processes but the first.
        every: 0 evaluates at the start and the end only.
    """

    def __init__(self, evaluate: Callable[[Any], HeldOut], metrics: MetricsFile | None, every: int) -> None:
        self._evaluate, self._metrics, self._every = evaluate, metrics, every
        self.last: HeldOut | None = None
        self.last_step = -1
        self.seconds = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.global_step == 0:
            self.run(model, 0)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        due = self._every and state.global_step % self._every == 0
        if due or state.global_step == state.max_steps:
            self.run(model, state.global_step)

    def run(self, model: Any, step: int) -> HeldOut:
        """Evaluate now and write the row."""
        begun = time.perf_counter()
        self.last, self.last_step = self._evaluate(model), step
        seconds = time.perf_counter() - begun
        self.seconds += seconds
        if self._metrics is not None:
            self._metrics.write(
                {
                    "step": step,
                    "heldout/sampled": self.last.sampled_rate,
                    "heldout/greedy": self.last.greedy_rate,
                    "heldout/seconds": seconds,
                }
            )
        return self.last


class StopSignal(TrainerCallback):
    """The first Ctrl-C (or SIGTERM) ends the run after the current step and saves a checkpoint; the second at once.

    Use as a context manager around ``train``; signal handlers are put back afterwards. With several processes any one
    that is told to stop stops all of them after the same step.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._previous: dict[int, Any] = {}
        self.requested = False
        self.stopped = False

    def __enter__(self) -> StopSignal:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._previous[number] = signal.signal(number, self._receive)
            except ValueError:  # not the main thread: the caller keeps its own handling
                break
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._any_process():
            self.stopped = state.global_step < state.max_steps
            control.should_save = control.should_training_stop = True

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self._progress.message("stopping after this step and saving (once more to stop at once)")

    def _any_process(self) -> bool:
        import torch

        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return self.requested
        device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
        flag = torch.tensor(int(self.requested), device=device)
        distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
        return bool(flag.item())


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """A mapping as an indented JSON file, whole or not there."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The mapping of a JSON file that ``write_json`` wrote.

    Raises:
        ViprlError: damaged.
    """
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ViprlError(f"{path} must hold JSON, but: {error}") from error


def _json_value(value: Any) -> Any:
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
