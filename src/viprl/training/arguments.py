"""From a job's configuration to the trainer's: what follows from budget, estimator and machine."""

from __future__ import annotations

import contextlib
import os
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from viprl.errors import ConfigurationError
from viprl.settings import settings_fields
from viprl.training.config import TrainConfig

if TYPE_CHECKING:
    from viprl.tasks import Task


def world_size() -> int:
    """Processes of the run, as launchers announce them."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """True on the process that writes; before any trainer exists."""
    return int(os.environ.get("RANK", "0")) == 0


@contextlib.contextmanager
def main_process_first() -> Iterator[None]:
    """The main process runs the block before the others do; nothing to wait for with one process."""
    if world_size() == 1:
        yield
        return
    from accelerate import PartialState

    with PartialState().main_process_first():
        yield


def trainer_arguments(
    config: TrainConfig, *, policy: str, seed: int, folder: Path, task: Task, cache: Path
) -> dict[str, Any]:
    """Keyword arguments for AdaptiveGRPOConfig or AdaptiveRLOOConfig; ``config.trainer`` wins over the defaults.

    Raises:
        ConfigurationError: the budget does not divide over processes and micro-batches, or contradicting settings.
    """
    import torch

    cpu = not torch.cuda.is_available()
    defaults: dict[str, Any] = {
        "max_completion_length": task.max_completion_length,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "save_total_limit": 1,
        "save_steps": max(1, (config.steps or 300) // 3),
        "beta": 0.0,
        **({"use_cpu": True, "bf16": False, "gradient_checkpointing": False} if cpu else {}),
    }
    if config.trainer_kind == "grpo":
        defaults["scale_rewards"] = "group" if config.estimator == "grpo" else "none"
        if config.estimator != "grpo":
            defaults["loss_type"] = "dr_grpo"
    given = {k: v for k, v in config.trainer.items() if k != "model_init_kwargs"}  # used when the model is loaded
    fixed: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": config.steps or -1,
        "seed": seed,
        "num_generations": config.group_size,
        **{item.name: getattr(config, item.name) for item in settings_fields()},
        "policy": policy,
        "candidates": 1 if config.is_control(policy) else config.candidates,
        "embedding_cache": str(cache / "embeddings"),
    }
    return {**defaults, **_batches(config), **given, **fixed}


def check_types(kind: type[Any], values: Mapping[str, Any]) -> None:
    """Numbers must be numbers: TRL and transformers take any value and fail where it is first used.

    Args:
        kind: TRL's config class.
        values: what a user put under ``trainer``.

    Raises:
        ConfigurationError: a value that is not of its field's type, where that is a plain one.
    """
    hints = typing.get_type_hints(kind)
    for name, value in values.items():
        allowed = set(typing.get_args(hints.get(name))) or {hints.get(name)}
        if not allowed <= {bool, int, float, type(None)}:
            continue
        fits = (
            (value is None and type(None) in allowed)
            or (isinstance(value, bool) and bool in allowed)
            or (isinstance(value, int) and not isinstance(value, bool) and bool(allowed & {int, float}))
            or (isinstance(value, float) and float in allowed)
        )
        if not fits:
            words = {bool: "true or false", int: "an integer", float: "a number", type(None): "null"}
            listed = " or ".join(words[t] for t in (bool, int, float, type(None)) if t in allowed)
            raise ConfigurationError(f"trainer.{name} must be {listed}, but got {value!r}")


def _batches(config: TrainConfig) -> dict[str, int]:
    """Micro-batches such that one optimizer step uses one generation batch of C rollouts, unless told otherwise."""
    processes = world_size()
    size = config.trainer.get("per_device_train_batch_size")
    if config.budget % processes:
        raise ConfigurationError(
            f"budget must be a multiple of the processes, but got (budget={config.budget}, processes={processes})"
        )
    if size is None:
        size = config.budget // processes
    if not isinstance(size, int) or size < 1 or config.budget % (size * processes):
        raise ConfigurationError(
            "budget must be a multiple of per_device_train_batch_size x processes, but got "
            f"(budget={config.budget}, per_device_train_batch_size={size}, processes={processes})"
        )
    batches = {"per_device_train_batch_size": size}
    if "steps_per_generation" not in config.trainer:
        batches["steps_per_generation"] = config.budget // (size * processes)
    if "gradient_accumulation_steps" not in config.trainer:
        batches["gradient_accumulation_steps"] = config.budget // (size * processes)
    return batches


def load_reward(spec: str, task: Task) -> Any:
    """The reward function of ``reward:``: the task's, or ``module:function`` or ``file.py:function``."""
    if spec == "task":
        return task.reward
    import importlib
    import importlib.util

    source, colon, name = spec.rpartition(":")
    if not colon:
        raise ConfigurationError(f"`reward` must be task, module:function or file.py:function, but got {spec!r}")
    try:
        if source.endswith(".py"):
            found = importlib.util.spec_from_file_location("viprl_reward", source)
            if found is None or found.loader is None:
                raise ImportError(f"cannot load {source}")
            module = importlib.util.module_from_spec(found)
            found.loader.exec_module(module)
        else:
            module = importlib.import_module(source)
        function = getattr(module, name)
    except Exception as error:  # whatever importing a user's file raises
        raise ConfigurationError(
            f"`reward` must name a function that can be imported, but got {spec!r}: {type(error).__name__}: {error}"
        ) from error
    if not callable(function):
        raise ConfigurationError(f"`reward` must name a function, but {spec!r} is of type {type(function).__name__}")
    return function
