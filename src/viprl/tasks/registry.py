"""Task names of configuration files."""

from __future__ import annotations

import inspect
from typing import Any

from viprl.errors import ConfigurationError
from viprl.tasks.arithmetic import ArithmeticTask
from viprl.tasks.base import Task
from viprl.tasks.math import MathTask
from viprl.tasks.reasoning import ReasoningGymTask
from viprl.tasks.search.task import SearchTask

TASKS: dict[str, type[Task]] = {task.name: task for task in (ArithmeticTask, MathTask, ReasoningGymTask, SearchTask)}


def make_task(name: str, **settings: Any) -> Task:
    """The task of a configuration file: ``arithmetic``, ``math``, ``reasoning_gym`` or ``reasoning_gym/<data set>``,
    ``search``.

    Raises:
        ConfigurationError: unknown name, or a setting that the task does not have.
    """
    base, _, part = str(name).partition("/")
    if base not in TASKS or (part and base != ReasoningGymTask.name):
        known = ", ".join([*sorted(TASKS), f"{ReasoningGymTask.name}/<data set>"])
        raise ConfigurationError(f"`task` must be one of {known}, but got {name!r}")
    if part:
        if "dataset" in settings:
            raise ConfigurationError(f"task {name!r} names its data set, but got dataset={settings['dataset']!r} too")
        settings = {"dataset": part, **settings}
    signature = inspect.signature(TASKS[base].__init__)
    allowed = [key for key in signature.parameters if key != "self"]
    unknown = [key for key in settings if key not in allowed]
    if unknown:
        raise ConfigurationError(f"task {base!r} takes the settings {', '.join(allowed)}, but got {unknown[0]!r}")
    required = [key for key in allowed if signature.parameters[key].default is inspect.Parameter.empty]
    missing = [key for key in required if key not in settings]
    if missing:
        raise ConfigurationError(f"task {base!r} needs the settings {', '.join(required)}, but got no {missing[0]!r}")
    return TASKS[base](**settings)
