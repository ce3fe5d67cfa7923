"""Prompts: how they are named (``ids``), read from files and handed to predictors."""

from viprl.prompts.ids import (
    PromptIdRule,
    canonical_text,
    choose_rule,
    content_hash,
    plain_text,
    resolve_prompt_ids,
)

__all__ = ["PromptIdRule", "canonical_text", "choose_rule", "content_hash", "plain_text", "resolve_prompt_ids"]
