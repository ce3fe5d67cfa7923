"""From a config, a data set and reward functions to an allocator."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

from trl.trainer.utils import get_callable_name, get_config_model_id

from viprl.errors import ConfigurationError
from viprl.prompts import NamedRows, PromptIdRule, choose_rule, name_rows
from viprl.settings import AllocationSettings

logger = logging.getLogger("viprl")

ID_COLUMNS = ("extra_info", "data_source", "index")

# a reward function whose name has one of these words, and none of those, is the success where several are trained
SUCCESS_WORDS = ("accuracy", "correct", "success", "solved", "exact_match")
NOT_SUCCESS = ("penalty", "not_", "non_", "no_", "wrong", "_error")


def prompt_id_rule(dataset: Any, id_column: str | None) -> PromptIdRule:
    """The id rule of a data set; streams are not read ahead, so theirs is the id column or the prompt's text.

    Raises:
        ConfigurationError: the id column is not in the data set, or neither ids nor prompts are.
    """
    columns = _columns(dataset)
    if id_column is not None and columns is not None and id_column not in columns:
        raise ConfigurationError(
            f"prompt_id_column must be a column of the data set, but got {id_column!r}; columns: {columns}"
        )
    extra = [name for name in ID_COLUMNS if name in (columns or ())]
    if id_column is None and columns is not None and "prompt" not in columns and not extra:
        raise ConfigurationError(
            "a data set without a `prompt` column (its environment owns the prompts) must name its prompts by "
            f"prompt_id_column, but got prompt_id_column=None; columns: {columns}"
        )
    if id_column is not None or not extra or not hasattr(dataset, "__len__"):
        return choose_rule((), id_column=id_column)
    return choose_rule(_rows(dataset, ["prompt", *extra]))


def named_rows(dataset: Any, rule: PromptIdRule, settings: AllocationSettings) -> NamedRows | None:
    """The data set's rows and prompts; None for a stream, whose prompts become known as they come.

    Raises:
        ConfigurationError: a configured column is not in the data set.
        InvalidInputError: a configured column does not hold numbers.
    """
    if not hasattr(dataset, "__len__"):
        return None
    columns = _columns(dataset)
    numeric = [*settings.side_information, *([settings.initial_rates] if settings.initial_rates else [])]
    for name in numeric:
        if columns is not None and name not in columns and "extra_info" not in columns:
            raise ConfigurationError(
                f"side_information and initial_rates must name columns of the data set, but got {name!r}; columns: "
                f"{columns}"
            )
    wanted = ["prompt", *([rule.column] if rule.column else ID_COLUMNS), *numeric, *(["extra_info"] if numeric else [])]
    return name_rows(
        _rows(dataset, wanted), rule, side_information=settings.side_information, initial_rates=settings.initial_rates
    )


def names_of(reward_funcs: Any) -> list[str]:
    """The names that TRL gives reward functions: a function's own, a model's last part."""
    given = reward_funcs if isinstance(reward_funcs, list) else [] if reward_funcs is None else [reward_funcs]
    names = []
    for function in given:
        if isinstance(function, str):
            names.append(function.rstrip("/").split("/")[-1])
        elif hasattr(function, "config"):
            names.append(get_config_model_id(function.config).split("/")[-1])
        else:
            names.append(get_callable_name(function))
    return names


def success_of(
    settings: AllocationSettings, functions: Sequence[str], weights: Sequence[float] | None = None
) -> str | None:
    """The reward function whose reward is the success; None where the trained reward itself (or a threshold) is.

    With one function its reward is the success. With several that are trained, ``success_reward`` names it; else a
    function whose name says so (``SUCCESS_WORDS``) is taken, and said.

    Args:
        functions: names of the reward functions.
        weights: of the functions; one of weight 0 is not trained. None weighs all alike.

    Raises:
        ConfigurationError: the name is not among them, or nothing tells which of several functions is the success.
    """
    listed = ", ".join(map(repr, functions))
    named = settings.success_function
    if named is not None:
        if list(functions).count(named) != 1:
            raise ConfigurationError(
                f"success_reward must name one of the reward functions, {listed}, but got {named!r}"
            )
        return named
    if weights is not None and len(weights) == len(functions):
        functions = [name for name, weight in zip(functions, weights, strict=True) if weight != 0]
    if len(functions) < 2 or settings.success_at is not None or settings.real_rewards:
        return None
    telling = [name for name in functions if _tells_success(name)]
    if len(telling) == 1:
        logger.info("of the reward functions %s, %r is the success that is predicted", listed, telling[0])
        return telling[0]
    if settings.policy == "uniform":
        return None
    raise ConfigurationError(
        "with several reward functions `success_reward` must say what success is, the name of one of them or a number "
        f"from which on their sum is a success, but got success_reward=None and {listed}; "
        f"for example success_reward={functions[0]!r}"
    )


def _tells_success(name: str) -> bool:
    """A success word begins a word of the name ("incorrect" holds none) and nothing in it says the opposite."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    found = re.search(rf"(?:^|[^a-z])(?:{'|'.join(SUCCESS_WORDS)})", words)
    return found is not None and not any(word in words for word in NOT_SUCCESS)


def _columns(dataset: Any) -> list[str] | None:
    """The columns that rows have; None where only reading them could tell."""
    return None if _transformed(dataset) else dataset.column_names


def _transformed(dataset: Any) -> bool:
    """``set_transform`` makes the rows, whatever columns are stored."""
    return getattr(dataset, "format", {}).get("type") == "custom" if hasattr(dataset, "__len__") else False


def _rows(dataset: Any, columns: Sequence[str]) -> Any:
    """The rows with these columns, as far as there are such."""
    if _transformed(dataset):
        return dataset
    return dataset.select_columns([name for name in dict.fromkeys(columns) if name in dataset.column_names])
