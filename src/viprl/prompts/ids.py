"""Stable prompt ids: one definition for every trainer.

The predictor's state, the history and the replay speak of prompts by id, so the id must survive a shuffle, a resume
and a move from one trainer to another. The rule, in this order:

1. the configured id column, at the top level or in ``extra_info``;
2. ``extra_info.prompt_id``, or ``data_source`` with ``index`` (at the top or inside ``extra_info``), where every row
   has it and no id names two different prompts;
3. the SHA-256 of the prompt's canonical text, first 16 hex digits.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from viprl._tables import id_text
from viprl.errors import ConfigurationError, InvalidInputError

HASH_DIGITS = 16
RuleKind = Literal["column", "extra_info.prompt_id", "data_source/index", "content"]


def canonical_text(prompt: Any) -> str:
    """The text that names a prompt: Unicode NFC, newlines as ``\\n``, no white space at either end.

    A conversation (sequence of messages with ``role`` and ``content``) becomes compact JSON of its roles and contents,
    and of whatever else a message holds (name, tool calls), by key; what is None or empty is not there. Content given
    as one text block equals the same content given as a string. Images and other parts enter by the digest of their
    bytes where they have any, else by their JSON value.

    Raises:
        InvalidInputError: the prompt is neither a string nor a sequence of messages.
    """
    if isinstance(prompt, str):
        return _clean(prompt)
    messages = list(prompt) if isinstance(prompt, Iterable) and not isinstance(prompt, Mapping) else None
    if not messages or not all(isinstance(m, Mapping) and "role" in m for m in messages):
        raise InvalidInputError(
            "a prompt must be a string or a sequence of messages with a `role`, but got "
            f"{type(prompt).__name__}: {str(prompt)[:80]!r}"
        )
    parts = [[str(m["role"]), _content(m.get("content")), *_others(m)] for m in messages]
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":"))


def content_hash(prompt: Any) -> str:
    """First 16 hex digits of the SHA-256 of the prompt's canonical text (UTF-8)."""
    text = canonical_text(prompt)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:HASH_DIGITS]


def plain_text(prompt: Any) -> str:
    """What an embedding model should read: the prompt itself, or its messages' texts, one per line."""
    if isinstance(prompt, str):
        return prompt
    texts = []
    for message in prompt:
        content = message.get("content")
        if isinstance(content, str):
            texts.append(content)
        elif content is not None:
            texts.extend(str(part["text"]) for part in content if isinstance(part, Mapping) and part.get("text"))
    return "\n".join(texts)


@dataclass(frozen=True)
class PromptIdRule:
    """How a data set's rows are named; choose one with ``choose_rule``.

    Attributes:
        kind: "column", "extra_info.prompt_id", "data_source/index" or "content".
        column: the id column where kind is "column".
        prompt_column: where the prompt lies.
    """

    kind: RuleKind
    column: str | None = None
    prompt_column: str = "prompt"

    def id_of(self, row: Mapping[str, Any]) -> str:
        """prompt_id of a row.

        Raises:
            InvalidInputError: the row lacks the field that the rule needs.
        """
        if self.kind == "content":
            return content_hash(_field(row, self.prompt_column))
        if self.kind == "column":
            value = row.get(str(self.column))
            value = _extra(row).get(str(self.column)) if value is None else value
        elif self.kind == "extra_info.prompt_id":
            value = _extra(row).get("prompt_id")
        else:
            source, index = row.get("data_source"), _index(row)
            value = None if source is None or index is None else f"{source}/{index}"
        found = id_text(value)
        if found is None:
            raise InvalidInputError(f"every row must have a value for {self.describe()}, but one has none")
        return found

    def describe(self) -> str:
        """The rule in words, for logs."""
        return f"column {self.column!r}" if self.kind == "column" else self.kind


def choose_rule(
    rows: Iterable[Mapping[str, Any]], *, id_column: str | None = None, prompt_column: str = "prompt"
) -> PromptIdRule:
    """The rule that fits a data set.

    Args:
        rows: the data set's rows. They are read only without ``id_column``. Pass an empty sequence for a stream that
            cannot be read ahead: the content hash is then the rule.
        id_column: the configured column.
        prompt_column: where the prompt lies.
    """
    if id_column is not None:
        return PromptIdRule("column", id_column, prompt_column)
    candidates = {
        kind: PromptIdRule(kind, None, prompt_column) for kind in ("extra_info.prompt_id", "data_source/index")
    }
    named: dict[str, dict[str, str]] = {kind: {} for kind in candidates}
    count = 0
    for row in rows:
        count += 1
        text = None
        for kind in list(candidates):
            try:
                prompt_id = candidates[kind].id_of(row)
            except InvalidInputError:
                del candidates[kind]
                continue
            text = content_hash(_field(row, prompt_column)) if text is None else text
            if named[kind].setdefault(prompt_id, text) != text:
                del candidates[kind]
        if not candidates:
            break
    if count and candidates:
        return next(iter(candidates.values()))
    return PromptIdRule("content", None, prompt_column)


def resolve_prompt_ids(
    rows: Sequence[Mapping[str, Any]], *, id_column: str | None = None, prompt_column: str = "prompt"
) -> list[str]:
    """prompt_id of each of N rows, by the rule at the head of this file.

    Rows with the same prompt share an id; their rollouts are still grouped by row.

    Raises:
        ConfigurationError: ``id_column`` is not in the rows.
    """
    if id_column is not None and len(rows) and id_column not in rows[0]:
        raise ConfigurationError(
            f"the id column must be one of the data set's columns, but got {id_column!r}; columns: {sorted(rows[0])}"
        )
    rule = choose_rule(rows, id_column=id_column, prompt_column=prompt_column)
    return [rule.id_of(row) for row in rows]


def _clean(text: str) -> str:
    return unicodedata.normalize("NFC", text).replace("\r\n", "\n").replace("\r", "\n").strip()


def _others(message: Mapping[str, Any]) -> list[Any]:
    """What a message holds beside role and content, as one mapping; nothing where there is nothing."""
    others = {k: v for k, v in message.items() if k not in ("role", "content") and v not in (None, "", [], {})}
    return [_value(others)] if others else []


def _content(content: Any) -> Any:
    if content is None:
        return None
    if isinstance(content, str):
        return _clean(content)
    parts: list[Any] = []
    for part in content:
        if isinstance(part, Mapping):
            # Arrow fills the fields that a block lacks with None.
            block = {str(k): _value(v) for k, v in part.items() if v is not None}
            parts.append(block.get("text", "") if block.get("type") == "text" else block)
        else:
            parts.append(_value(part))
    return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(k): _value(v) for k, v in sorted(value.items(), key=lambda item: str(item[0])) if v is not None}
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if hasattr(value, "tobytes"):
        return hashlib.sha256(value.tobytes()).hexdigest()
    if isinstance(value, Sequence):
        return [_value(v) for v in value]
    raise InvalidInputError(f"a prompt's parts must be text, numbers, bytes or images, but got {type(value).__name__}")


def _field(row: Mapping[str, Any], name: str) -> Any:
    if name not in row:
        raise InvalidInputError(f"every row must have the column {name!r}, but one has only {sorted(row)}")
    return row[name]


def _extra(row: Mapping[str, Any]) -> Mapping[str, Any]:
    extra = row.get("extra_info")
    return extra if isinstance(extra, Mapping) else {}


def _index(row: Mapping[str, Any]) -> Any:
    return row["index"] if row.get("index") is not None else _extra(row).get("index")
