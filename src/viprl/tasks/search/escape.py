"""Making retrieved text harmless before it meets a chat template.

A chat template pastes text together and tokenises the result, so a passage that contains ``<|im_end|>`` or
``<tool_call>`` would become a real control token: it could end the turn, open a call, or speak as the user.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

PROTOCOL_TAGS = ("think", "tool_call", "tool_response", "tools", "answer", "search", "information")
_TAG = re.compile(r"<(?=\s*/?\s*(?:" + "|".join(PROTOCOL_TAGS) + r")\b[^<>]{0,64}>)", re.IGNORECASE)
_PIPE = re.compile(r"<(?=\s*[|｜][^<>]{0,64}[|｜]\s*>)")
_GAP = " "
_ANGLE = "‹"


def special_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Every string that `tokenizer` turns into a token of its own: special and added tokens, longest first."""
    added = {str(token) for token in getattr(tokenizer, "added_tokens_encoder", {})}
    added.update(str(token) for token in getattr(tokenizer, "all_special_tokens", []))
    return tuple(sorted((t for t in added if len(t) > 1 and t.strip()), key=lambda t: (-len(t), t)))


class Escaper:
    """Rewrites text so that no control token and no tag of the protocol remains in it.

    - ``<`` before a protocol tag or a ``<|...|>`` marker becomes ``‹``, whether or not the tokenizer knows it;
    - any other token of `tokens` (such as ``[INST]`` or ``</s>``) gets a space after its first character;
    - control characters other than newline and tab, and lone surrogates, are dropped.

    The result contains none of `tokens` as a substring; escaping twice changes nothing.
    """

    def __init__(self, tokens: Iterable[str] = ()) -> None:
        self.tokens = tuple(sorted({t for t in tokens if len(t) > 1 and t.strip()}, key=lambda t: (-len(t), t)))
        self._known = re.compile("|".join(map(re.escape, self.tokens))) if self.tokens else None

    def __call__(self, text: str) -> str:
        text, before = _printable(text), ""
        while text != before:  # breaking one token can uncover another; each pass leaves fewer, so this ends
            before = text
            text = _PIPE.sub(_ANGLE, _TAG.sub(_ANGLE, text))
            if self._known is not None:
                text = self._known.sub(lambda match: _broken(match.group()), text)
        return text


def _broken(token: str) -> str:
    if token.startswith("<"):
        return _ANGLE + token[1:]
    return token[0] + _GAP + token[1:]


def _printable(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs"))
