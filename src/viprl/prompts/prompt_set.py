"""The prompts of a run: what predictors are built from, read off rows by one rule for every trainer.

Notation: R rows of a data set, N distinct prompts, D embedding size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from viprl._arrays import FloatArray
from viprl.errors import InvalidInputError
from viprl.prompts.ids import PromptIdRule, canonical_text, plain_text

logger = logging.getLogger("viprl")


@dataclass(frozen=True, eq=False)
class PromptSet:
    """N distinct prompts and what is known of them before the run.

    Attributes:
        ids: (N,) stable prompt ids.
        texts: (N,) what a predictor reads, or a function that gives them; None where there are none.
        embeddings: (N, D), row r belongs to ids[r]; None leaves them to the settings' ``embedding_model``.
        side_information: name -> (N,) numbers, NaN where missing.
        initial_rates: (N,) success rates measured before the run, NaN where missing; None without any.
        initial_rollouts: (N,) rollouts behind each; None leaves them to the settings' ``initial_rollouts``.

    Raises:
        InvalidInputError: an id occurs twice, or an array is not (N,).
    """

    ids: Sequence[str]
    texts: Sequence[str] | Callable[[], Sequence[str]] | None = None
    embeddings: Any = None
    side_information: Mapping[str, FloatArray] = field(default_factory=dict)
    initial_rates: FloatArray | None = None
    initial_rollouts: FloatArray | None = None

    def __post_init__(self) -> None:
        if isinstance(self.ids, str) or not isinstance(self.ids, Sequence):
            raise TypeError(f"PromptSet(ids, ...) takes a sequence of prompt ids, but got {type(self.ids).__name__}")
        if len(set(self.ids)) != len(self.ids):
            raise InvalidInputError(
                f"prompt ids must differ (merge a prompt's rows), but {len(set(self.ids))} of {len(self.ids)} do"
            )
        lengths = {name: len(column) for name, column in self.side_information.items()}
        if self.texts is not None and not callable(self.texts):
            lengths["texts"] = len(self.texts)
        if self.embeddings is not None:
            lengths["embeddings"] = len(self.embeddings)
        if self.initial_rollouts is not None:
            lengths["initial_rollouts"] = len(self.initial_rollouts)
        if self.initial_rates is not None:
            lengths["initial_rates"] = len(self.initial_rates)
            rates = np.asarray(self.initial_rates, dtype=np.float64)
            wrong = rates[(rates < 0) | (rates > 1)]
            if len(wrong):
                raise InvalidInputError(f"initial rates must lie in [0, 1], but got {wrong[0]:g}")
        for name, length in lengths.items():
            if length != len(self.ids):
                raise InvalidInputError(
                    f"`{name}` must have one entry per prompt, but got {length} for {len(self.ids)}"
                )

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        has = [name for name in ("texts", "embeddings", "initial_rates") if getattr(self, name) is not None]
        return f"PromptSet({len(self)} prompts, {', '.join([*has, *self.side_information]) or 'ids alone'})"

    def read_texts(self) -> list[str] | None:
        """The N texts; None where there are none."""
        texts = self.texts() if callable(self.texts) else self.texts
        return None if texts is None else list(texts)


@dataclass(frozen=True, eq=False)
class NamedRows:
    """A data set's rows by prompt.

    Attributes:
        prompts: the N distinct prompts, in order of first appearance.
        row_ids: (R,) prompt_id of every row.
        first_rows: (N,) each prompt's first row.
        rule: how rows are named.
    """

    prompts: PromptSet
    row_ids: list[str]
    first_rows: list[int]
    rule: PromptIdRule


def name_rows(
    rows: Iterable[Mapping[str, Any]],
    rule: PromptIdRule,
    *,
    side_information: Sequence[str] = (),
    initial_rates: str | None = None,
) -> NamedRows:
    """Ids, texts and numbers of a data set's rows. A prompt's first row speaks for it.

    Args:
        rows: R mappings; numeric columns may lie at the top level or in ``extra_info``. Rows without the rule's prompt
            column give prompts without texts.
        rule: from ``choose_rule``.
        side_information: names of numeric columns.
        initial_rates: name of the column of success rates.

    Raises:
        InvalidInputError: a row without id; a column that holds something other than numbers, or none at all.
    """
    row_ids: list[str] = []
    first: dict[str, int] = {}
    texts: list[str] = []
    wanted = dict.fromkeys([*side_information, *([initial_rates] if initial_rates else [])])
    columns: dict[str, list[float]] = {name: [] for name in wanted}
    contents: dict[str, str] = {}
    mixed: set[str] = set()
    for number, row in enumerate(rows):
        try:
            prompt_id = rule.id_of(row)
        except InvalidInputError as error:
            raise InvalidInputError(f"row {number + 1}: {error}") from error
        row_ids.append(prompt_id)
        prompt = row.get(rule.prompt_column)
        if prompt is not None and rule.kind == "column":
            content = canonical_text(prompt)
            if contents.setdefault(prompt_id, content) != content:
                mixed.add(prompt_id)
        if prompt_id in first:
            continue
        first[prompt_id] = number
        if prompt is not None:
            texts.append(plain_text(prompt))
        for name, column in columns.items():
            column.append(_number(name, _lookup(row, name)))
    if mixed:
        example = min(mixed)
        logger.warning(
            "%d of %d ids in %s name prompts with different texts (for instance %r): such prompts share one belief",
            *(len(mixed), len(first), rule.describe(), example),
        )
    arrays = {name: np.array(column, dtype=np.float64) for name, column in columns.items()}
    for name, array in arrays.items():
        if len(array) and np.isnan(array).all():
            raise InvalidInputError(f"a numeric column must have a number in at least one row, but {name!r} has none")
    prompts = PromptSet(
        list(first),
        texts if len(texts) == len(first) else None,
        side_information={name: arrays[name] for name in side_information},
        initial_rates=arrays[initial_rates] if initial_rates else None,
    )
    return NamedRows(prompts, row_ids, list(first.values()), rule)


def _lookup(row: Mapping[str, Any], name: str) -> Any:
    if row.get(name) is not None:
        return row[name]
    extra = row.get("extra_info")
    return extra.get(name) if isinstance(extra, Mapping) else None


def _number(name: str, value: Any) -> float:
    if value is None or (isinstance(value, str) and not value.strip()):
        return float("nan")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidInputError(f"column {name!r} must hold numbers or nothing, but has {value!r}") from None
