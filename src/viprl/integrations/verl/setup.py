"""From verl's training data to the allocator: prompt ids, texts, embeddings, side information.

Notation: R rows of the data set, N distinct prompts, D embedding size.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viprl import variance
from viprl.advantages import float32_values
from viprl.allocation.policies import POLICIES
from viprl.allocator import RolloutAllocator
from viprl.errors import ConfigurationError
from viprl.integrations.predictors import build_predictor
from viprl.integrations.verl.checks import RunSettings
from viprl.prompts.ids import choose_rule, plain_text

logger = logging.getLogger("viprl")

ID_COLUMN = "viprl_prompt_id"

VERL_STD_EPSILON = 1e-6


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a data set.

    Attributes:
        row_ids: (R,) prompt_id of every row.
        prompt_ids: (N,) distinct ids in order of first appearance.
        texts: (N,) what an embedding model reads.
        side_information: name -> (N,) floats, NaN where missing.
        rule: how the ids were made, in words.
    """

    row_ids: list[str]
    prompt_ids: list[str]
    texts: list[str]
    side_information: dict[str, NDArray[np.float64]]
    rule: str


def read_prompts(
    rows: Sequence[Mapping[str, Any]],
    *,
    prompt_column: str,
    id_column: str | None = None,
    side_information: Sequence[str] = (),
) -> PromptSet:
    """Ids, texts and side information of a data set's rows.

    Args:
        rows: R mappings; a ``datasets.Dataset`` will do.
        prompt_column: where the conversation lies (``data.prompt_key``).
        id_column: the configured id column, at the top level or in ``extra_info``.
        side_information: numeric columns, at the top level or in ``extra_info``.

    Raises:
        ConfigurationError: a configured column is absent from every row, or holds something other than numbers.
    """
    if id_column is not None:
        row_ids, rule = [], f"column {id_column!r}"
        for row in rows:
            value = _lookup(row, id_column)
            if value is None:
                raise ConfigurationError(f"every row must have viprl.prompt_id_column={id_column!r}, but one has none")
            row_ids.append(str(value))
    else:
        chosen = choose_rule(rows, prompt_column=prompt_column)
        row_ids, rule = [chosen.id_of(row) for row in rows], chosen.describe()
    texts: dict[str, str] = {}
    columns: dict[str, dict[str, float]] = {name: {} for name in side_information}
    for prompt_id, row in zip(row_ids, rows, strict=True):
        if prompt_id in texts:
            continue
        texts[prompt_id] = plain_text(row[prompt_column])
        for name, column in columns.items():
            column[prompt_id] = _number(name, _lookup(row, name))
    arrays = {name: np.array(list(column.values()), dtype=np.float64) for name, column in columns.items()}
    for name, array in arrays.items():
        if not np.isfinite(array).any():
            raise ConfigurationError(
                f"a side-information column must have a number in at least one row, but {name!r} has none"
            )
    return PromptSet(row_ids, list(texts), list(texts.values()), arrays, rule)


def prompts_of_dataset(dataset: Any, *, prompt_column: str, settings: RunSettings) -> PromptSet:
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
    options = settings.options
    wanted = [prompt_column, "data_source", "extra_info", "index", options.prompt_id_column, *options.side_information]
    prompts = read_prompts(
        frame.select_columns([name for name in dict.fromkeys(wanted) if name in frame.column_names]),
        prompt_column=prompt_column,
        id_column=options.prompt_id_column,
        side_information=options.side_information,
    )
    if ID_COLUMN in frame.column_names:
        frame = frame.remove_columns(ID_COLUMN)
    dataset.dataframe = frame.add_column(ID_COLUMN, prompts.row_ids)
    return prompts


def build_allocator(prompts: PromptSet, settings: RunSettings) -> RolloutAllocator:
    """The run's allocator; embeddings are computed once and cached.

    Raises:
        ConfigurationError: an unknown predictor or policy, or a predictor that lacks what it needs.
    """
    options, budget = settings.options, settings.budget
    if options.policy not in POLICIES:
        raise ConfigurationError(f"viprl.policy must be one of {sorted(POLICIES)}, but got {options.policy!r}")
    start = time.perf_counter()
    predictor = build_predictor(
        options.predictor,
        prompts.prompt_ids,
        lambda: prompts.texts,
        embedding_model=options.embedding_model,
        embedding_cache=options.embedding_cache,
        side_information=prompts.side_information,
        prefix="viprl.",
    )
    logger.info(
        "viprl: %d rows, %d prompts, ids by %s, predictor %s ready after %.1f s",
        *(len(prompts.row_ids), len(prompts.prompt_ids), prompts.rule, options.predictor),
        time.perf_counter() - start,
    )
    return RolloutAllocator(
        predictor,
        variance_model(settings),
        min_group_size=budget.min_group_size,
        max_group_size=budget.max_group_size,
        policy=POLICIES[options.policy](),
        guard=options.guard,
        reward_values=float32_values(options.reward_values),
    )


def variance_model(settings: RunSettings) -> Any:
    """The VarianceModel of a run's estimator: a formula, with verl's epsilon for GRPO, or learned."""
    if settings.options.variance == "learned":
        return variance.OutcomeMoments(estimator=settings.estimator)
    models: dict[str, Callable[[], variance.VarianceModel]] = {
        "rloo": variance.RLOO,
        "dr_grpo": variance.DrGRPO,
        "grpo": lambda: variance.GRPO(ddof=1, epsilon=VERL_STD_EPSILON),
    }
    return models[settings.estimator]()


def _lookup(row: Mapping[str, Any], name: str) -> Any:
    if row.get(name) is not None:
        return row[name]
    extra = row.get("extra_info")
    return extra.get(name) if isinstance(extra, Mapping) else None


def _number(name: str, value: Any) -> float:
    if value is None:
        return float("nan")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigurationError(f"side information must be numbers, but column {name!r} has {value!r}") from None
