"""From a config and a data set to an allocator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viprl.advantages import GRPO_EPSILON, float32_values
from viprl.allocator import RolloutAllocator
from viprl.errors import ConfigurationError, InvalidInputError
from viprl.integrations.predictors import TAKES_NEW_PROMPTS, build_predictor, check_predictor, predictor_class
from viprl.integrations.trl.learned import learned_model
from viprl.prompts.ids import PromptIdRule, choose_rule, plain_text
from viprl.variance import GRPO, RLOO, DrGRPO, VarianceModel

ID_COLUMNS = ("extra_info", "data_source", "index")


def variance_model(estimator: str) -> VarianceModel:
    """The variance model of an advantage estimator, with TRL's epsilon for GRPO."""
    models: dict[str, Callable[[], VarianceModel]] = {
        "dr_grpo": DrGRPO,
        "rloo": RLOO,
        "grpo": lambda: GRPO(ddof=1, epsilon=GRPO_EPSILON),
    }
    return models[estimator]()


def prompt_id_rule(dataset: Any, id_column: str | None) -> PromptIdRule:
    """The id rule of a data set; streams are not read ahead, so theirs is the id column or the prompt's text.

    Raises:
        ConfigurationError: the id column is not in the data set.
    """
    columns = dataset.column_names
    if id_column is not None and columns is not None and id_column not in columns:
        raise ConfigurationError(
            f"prompt_id_column must be a column of the data set, but got {id_column!r}; columns: {columns}"
        )
    extra = [name for name in ID_COLUMNS if name in (columns or ())]
    if id_column is not None or not extra or not hasattr(dataset, "__len__"):
        return choose_rule((), id_column=id_column)
    return choose_rule(dataset.select_columns(["prompt", *extra]))


def build_allocator(
    args: Any,
    dataset: Any,
    rule: PromptIdRule,
    *,
    predictor: Any = None,
    policy: Any = None,
) -> RolloutAllocator:
    """The allocator that a config describes.

    Args:
        args: an AdaptiveGRPOConfig or AdaptiveRLOOConfig.
        dataset: the training set, or a stream, whose prompts become known as they come.
        rule: how rows are named.
        predictor, policy: objects instead of the config's names.

    Raises:
        ConfigurationError: the names do not fit the data set.
    """
    return RolloutAllocator(
        _predictor(args, dataset, rule) if predictor is None else predictor,
        learned_model(args.estimator) if args.variance == "learned" else variance_model(args.estimator),
        min_group_size=args.min_group_size,
        max_group_size=args.max_group_size,
        policy=_policy(args.policy) if policy is None else policy,
        guard=args.guard,
        reward_values=float32_values(args.reward_values),
    )


def _policy(name: str) -> Any:
    from viprl.allocation.policies import POLICIES

    if name not in POLICIES:
        raise ConfigurationError(f"`policy` must be one of {sorted(POLICIES)}, but got {name!r}")
    return POLICIES[name]()


def _predictor(args: Any, dataset: Any, rule: PromptIdRule) -> Any:
    name, columns = args.predictor, args.side_information or ()
    if not hasattr(dataset, "__len__"):
        # a stream's prompts become known as they come: predictors learn from own history alone
        if name not in TAKES_NEW_PROMPTS or args.embedding_model != "none" or columns:
            raise ConfigurationError(
                "a streaming data set needs a predictor that takes new prompts, without embeddings and side "
                f"information, but got predictor={name!r}, embedding_model={args.embedding_model!r}, side_information="
                f"{args.side_information}; use one of {sorted(TAKES_NEW_PROMPTS)}, or give the trainer an object"
            )
        return predictor_class(name)()
    check_predictor(name, embedding_model=args.embedding_model, side_information=columns)
    first_rows = _first_rows(dataset, rule)
    rows = list(first_rows.values())

    def texts() -> list[str]:
        prompts = dataset["prompt"]
        return [plain_text(prompts[row]) for row in rows]

    return build_predictor(
        name,
        list(first_rows),
        texts,
        embedding_model=args.embedding_model,
        embedding_cache=args.embedding_cache,
        side_information=_side_information(columns, dataset, rows),
    )


def _first_rows(dataset: Any, rule: PromptIdRule) -> dict[str, int]:
    """prompt_id -> its first row, in the order of the data set."""
    columns = {"content": ["prompt"], "column": [rule.column], "extra_info.prompt_id": ["extra_info"]}.get(
        rule.kind, [name for name in ID_COLUMNS if name in dataset.column_names]
    )
    first: dict[str, int] = {}
    for position, row in enumerate(dataset.select_columns(columns)):
        first.setdefault(rule.id_of(row), position)
    return first


def _side_information(columns: Sequence[str], dataset: Any, rows: Sequence[int]) -> Mapping[str, NDArray[np.float64]]:
    side: dict[str, NDArray[np.float64]] = {}
    for name in columns:
        if name not in dataset.column_names:
            raise ConfigurationError(
                f"side_information must name columns of the data set, but got {name!r}; columns: {dataset.column_names}"
            )
        values = dataset[name]
        try:
            side[name] = np.array([np.nan if values[row] is None else float(values[row]) for row in rows])
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"side information must be numbers or None, but column {name!r}: {error}"
            ) from error
    return side
