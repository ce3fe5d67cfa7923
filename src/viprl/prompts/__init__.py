"""Prompts: how they are named (``ids``) and what predictors are built from (``prompt_set``)."""

from viprl.prompts.ids import (
    PromptIdRule,
    canonical_text,
    choose_rule,
    content_hash,
    plain_text,
    resolve_prompt_ids,
)
from viprl.prompts.prompt_set import NamedRows, PromptSet, name_rows

__all__ = [
    "NamedRows",
    "PromptIdRule",
    "PromptSet",
    "canonical_text",
    "choose_rule",
    "content_hash",
    "name_rows",
    "plain_text",
    "resolve_prompt_ids",
]
