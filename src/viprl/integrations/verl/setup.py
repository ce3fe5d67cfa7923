"""From verl's training data to the allocator."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from viprl.advantages import float32_values
from viprl.allocator import RolloutAllocator
from viprl.build import build_allocator
from viprl.errors import ConfigurationError
from viprl.integrations.verl.checks import RunSettings
from viprl.prompts import NamedRows, PromptSet, choose_rule, name_rows
from viprl.settings import AllocationSettings

logger = logging.getLogger("viprl")

ID_COLUMN = "viprl_prompt_id"


def read_prompts(rows: Sequence[Mapping[str, Any]], *, prompt_column: str, settings: AllocationSettings) -> NamedRows:
    """Ids, texts and numbers of a data set's R rows (a ``datasets.Dataset`` will do).

    Args:
        prompt_column: where the conversation lies (``data.prompt_key``).
        settings: which columns name prompts and hold numbers, at the top level or in ``extra_info``.

    Raises:
        InvalidInputError: a row without a configured id; a column that holds something other than numbers, or none.
    """
    rule = choose_rule(
        () if settings.prompt_id_column else rows, id_column=settings.prompt_id_column, prompt_column=prompt_column
    )
    return name_rows(rows, rule, side_information=settings.side_information, initial_rates=settings.initial_rates)


def prompts_of_dataset(dataset: Any, *, prompt_column: str, settings: AllocationSettings) -> PromptSet:
    """Prompts of verl's training data set, to which a column with their ids is added in place.

    verl overwrites ``index`` by ``extra_info.index`` or 0, so rows carry their id from here on.

    Raises:
        ConfigurationError: the data set has no ``dataframe`` of Hugging Face's ``datasets``.
    """
    frame = getattr(dataset, "dataframe", None)
    if frame is None or not hasattr(frame, "add_column"):
        raise ConfigurationError(
            "the training data set must keep its rows in `dataframe` (datasets.Dataset), as verl's RLHFDataset and its "
            f"subclasses do, but got {type(dataset).__name__}"
        )
    wanted = [prompt_column, "data_source", "extra_info", "index", settings.prompt_id_column, settings.initial_rates]
    wanted += settings.side_information
    named = read_prompts(
        frame.select_columns([name for name in dict.fromkeys(wanted) if name in frame.column_names]),
        prompt_column=prompt_column,
        settings=settings,
    )
    if ID_COLUMN in frame.column_names:
        frame = frame.remove_columns(ID_COLUMN)
    dataset.dataframe = frame.add_column(ID_COLUMN, named.row_ids)
    logger.info("viprl: %d rows, %d prompts, ids by %s", len(named.row_ids), len(named.prompts), named.rule.describe())
    return named.prompts


def allocator_of_run(prompts: PromptSet, run: RunSettings) -> RolloutAllocator:
    """The run's allocator; embeddings are computed once and cached."""
    start = time.perf_counter()
    settings = run.settings.replace(reward_values=float32_values(run.settings.reward_values))
    allocator = build_allocator(prompts, settings, not_learnable=None)
    logger.info("viprl: %s ready after %.1f s", settings.predictor, time.perf_counter() - start)
    return allocator
