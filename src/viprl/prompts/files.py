"""Prompts from a parquet, CSV or JSON lines file: one reader for every command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from viprl._tables import id_text, read_rows
from viprl.errors import InvalidInputError
from viprl.prompts.ids import PromptIdRule, choose_rule
from viprl.prompts.prompt_set import NamedRows, name_rows

TEXT_COLUMNS = ("prompt_text", "text", "prompt", "question", "problem")
ID_COLUMNS = ("prompt_id", "id")


@dataclass(frozen=True, eq=False)
class PromptFile:
    """What a file of prompts holds.

    Attributes:
        path: the file.
        rows: the R records.
        named: their prompts; rows that repeat a prompt are merged.
    """

    path: Path
    rows: list[dict[str, Any]]
    named: NamedRows

    def notes(self) -> list[str]:
        """What a user should know, in sentences."""
        found = []
        merged = len(self.rows) - len(self.named.prompts)
        if merged:
            found.append(f"{merged} of {len(self.rows)} rows of {self.path} repeat a prompt and were merged")
        gaps = [
            name for name in ID_COLUMNS if 0 < sum(id_text(row.get(name)) is None for row in self.rows) < len(self.rows)
        ]
        if gaps and self.named.rule.column is None:
            found.append(
                f"some rows of {self.path} have no {gaps[0]}, so its prompts are named by {self.named.rule.describe()}"
            )
        return found


def read_prompts(
    path: str | Path,
    *,
    text_column: str | None = None,
    id_column: str | None = None,
    side_information: Sequence[str] = (),
    initial_rates: str | None = None,
    texts_required: bool = True,
) -> PromptFile:
    """Read a file of prompts.

    Args:
        path: .parquet, .csv, .tsv, .jsonl, as ``viprl._tables`` reads them: ids are text, an empty cell is missing.
        text_column: texts or conversations; by default the first of ``TEXT_COLUMNS`` that is there.
        id_column: by default the first of ``ID_COLUMNS`` that every row has, else the trainers' rule.
        side_information, initial_rates: numeric columns.
        texts_required: False accepts a file of ids alone.

    Raises:
        InvalidInputError: no rows, a missing column, a row without text or id, one id for different texts.
        FileNotFoundError: there is no such file.
    """
    path = Path(path)
    numbered = list(read_rows(path))
    if not numbered:
        raise InvalidInputError(f"{path} must hold at least one prompt, but it has no rows")
    rows = [row for _, row in numbered]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    for name in (text_column, id_column, *side_information, initial_rates):
        if name is not None and name not in columns and not _in_extra_info(rows, name):
            raise InvalidInputError(f"{path} must have the column {name!r}, but has {columns}")
    text = text_column or next((name for name in TEXT_COLUMNS if name in columns), None)
    if text is None and texts_required:
        raise InvalidInputError(
            f"{path} must have one of the columns {', '.join(TEXT_COLUMNS)}, or --text-column must name one, but has "
            f"{columns}"
        )
    if text is not None:
        for number, row in numbered:
            if not _has_text(row.get(text)):
                raise InvalidInputError(
                    f"{path}, row {number}: {text!r} must be a text that is not empty, or a conversation, but got "
                    f"{row.get(text)!r:.80}"
                )
    rule = _rule(path, rows, id_column, text)
    named = name_rows(rows, rule, side_information=side_information, initial_rates=initial_rates)
    _check_one_text_an_id(path, numbered, named, text)
    return PromptFile(path, rows, named)


def _rule(path: Path, rows: list[dict[str, Any]], id_column: str | None, text: str | None) -> PromptIdRule:
    prompt_column = text or "prompt"
    chosen = id_column or next((n for n in ID_COLUMNS if all(row.get(n) not in (None, "") for row in rows)), None)
    if chosen is None and text is None:
        raise InvalidInputError(f"{path} must have ids ({' or '.join(ID_COLUMNS)}) or texts, but has neither")
    if chosen is not None:
        return choose_rule((), id_column=chosen, prompt_column=prompt_column)
    return choose_rule(rows, prompt_column=prompt_column)


def _check_one_text_an_id(
    path: Path, numbered: list[tuple[int, dict[str, Any]]], named: NamedRows, text: str | None
) -> None:
    if text is None or len(named.prompts) == len(numbered):
        return
    first: dict[str, int] = {}
    for place, prompt_id in enumerate(named.row_ids):
        other = first.setdefault(prompt_id, place)
        if numbered[other][1][text] != numbered[place][1][text]:
            raise InvalidInputError(
                f"{path}, rows {numbered[other][0]} and {numbered[place][0]}: a prompt id must name one prompt, but "
                f"both have {prompt_id!r} and different texts"
            )


def _in_extra_info(rows: list[dict[str, Any]], name: str) -> bool:
    return any(isinstance(extra := row.get("extra_info"), Mapping) and name in extra for row in rows)


def _has_text(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip())
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) and "role" in item for item in value)
