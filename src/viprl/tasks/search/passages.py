"""Passages and the two document shapes that retrieval servers exchange."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from viprl.errors import InvalidInputError


def passage_id(title: str, text: str) -> str:
    """Content hash of a passage: the first 16 hex digits of SHA-256 of title, newline, text.

    A corpus and a question set built from the same records agree on these ids without knowing of each other.
    """
    return hashlib.sha256(f"{title}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True)
class Passage:
    """One retrievable unit of text. `id` defaults to the content hash."""

    text: str
    title: str = ""
    id: str = ""

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", passage_id(self.title, self.text))

    @property
    def contents(self) -> str:
        """Title and text on separate lines: what the retrievers index."""
        return f"{self.title}\n{self.text}" if self.title else self.text

    def to_document(self) -> dict[str, str]:
        """The shape of Search-R1's servers: ``contents`` = the title in double quotes, newline, text."""
        return {
            "id": self.id,
            "title": self.title,
            "text": self.text,
            "contents": f'"{self.title}"\n{self.text}' if self.title else self.text,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any] | str) -> Passage:
        """Read a server's document: ``{"title", "text"}``, ``{"contents"}`` (first line = title) or bare text.

        Raises:
            InvalidInputError: no text under any of the known names.
        """
        if isinstance(document, str):
            return cls(text=document)
        if not isinstance(document, Mapping):
            raise InvalidInputError(f"a document must be an object or a string, but got {type(document).__name__}")
        identifier = _string(document, ("id", "_id", "doc_id", "docid", "passage_id"))
        title = _string(document, ("title", "wikipedia_title"))
        text = _string(document, ("text", "paragraph_text", "body", "passage"))
        if not text:
            contents = _string(document, ("contents", "content"))
            if not contents:
                raise InvalidInputError(f"a document must hold text or contents, but its keys are {sorted(document)}")
            head, newline, tail = contents.partition("\n")
            if newline and tail.strip() and (not title or head.strip().strip('"') == title):
                title, text = head.strip().strip('"'), tail
            else:
                text = contents
        return cls(text=text, title=title, id=identifier)


def _string(document: Mapping[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        value = document.get(name)
        if isinstance(value, str | int) and str(value):
            return str(value)
    return ""


@dataclass(frozen=True)
class Hit:
    """A retrieved passage with the retriever's score (its unit depends on the back end)."""

    passage: Passage
    score: float
