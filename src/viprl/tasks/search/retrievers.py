"""One interface for every retriever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from viprl.errors import InvalidInputError, ViprlError
from viprl.tasks.search.passages import Hit


class RetrievalError(ViprlError, RuntimeError):
    """The retriever could not answer (server down, too slow, or speaking another protocol)."""


@runtime_checkable
class Retriever(Protocol):
    """Finds passages. Implementations are safe to call from several threads."""

    def retrieve(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """At most `top_k` hits for each query, best first, ties to the earlier passage.

        Raises:
            RetrievalError: no answer can be given; the message may be shown to a model.
        """
        ...


def check_request(queries: Sequence[str], top_k: int) -> None:
    """Shared validation of `retrieve`'s arguments."""
    if isinstance(queries, str):
        raise InvalidInputError("`queries` must be a sequence of strings, but got one string")
    if top_k < 1:
        raise InvalidInputError(f"top_k >= 1 must hold, but got {top_k}")
