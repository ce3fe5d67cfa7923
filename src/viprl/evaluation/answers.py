"""Short answers against gold answers: exact match, token F1 and token precision.

The normalisation is that of the SQuAD evaluation (Rajpurkar et al. 2016), which HotpotQA, MuSiQue and FlashRAG use
too: lower case, no punctuation, no English articles, single spaces. HotpotQA's rule is kept as well: "yes", "no" and
"noanswer" match only themselves.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from viprl.errors import InvalidInputError

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})
_ASCII_PUNCTUATION = frozenset(string.punctuation)


@dataclass(frozen=True)
class TokenOverlap:
    """Overlap of the tokens of an answer with those of the closest gold answer; each number in [0, 1]."""

    f1: float
    precision: float
    recall: float


def normalize_answer(text: str) -> str:
    """Lower case, without punctuation, articles and extra white space.

    Composed and decomposed accents are made equal (NFC) first, and Unicode punctuation (“ ” – …) goes like ASCII's,
    which the original ASCII-only script would keep.

    >>> normalize_answer("The  Eiffel Tower!")
    'eiffel tower'
    """
    lowered = unicodedata.normalize("NFC", text).lower()
    kept = "".join(c for c in lowered if c not in _ASCII_PUNCTUATION and not unicodedata.category(c).startswith("P"))
    return " ".join(_ARTICLES.sub(" ", kept).split())


def exact_match(answer: str | None, gold: str | Sequence[str]) -> float:
    """1.0 where the normalised answer equals a normalised gold answer, else 0.0; None (no answer) is 0.0.

    An answer that normalises to nothing ("", "The", "...") matches only a gold answer that does so too.

    >>> exact_match("the Eiffel tower", ["Eiffel Tower", "La tour Eiffel"])
    1.0
    """
    golds = _gold_list(gold)
    if answer is None:
        return 0.0
    return float(normalize_answer(answer) in {normalize_answer(g) for g in golds})


def token_overlap(answer: str | None, gold: str | Sequence[str]) -> TokenOverlap:
    """Token F1, precision and recall against the gold answer that gives the best F1 (then precision).

    Tokens count with their multiplicity. Where both sides normalise to nothing all three are 1; where one does, 0.
    """
    golds = _gold_list(gold)
    if answer is None:
        return TokenOverlap(0.0, 0.0, 0.0)
    return max((_overlap(answer, g) for g in golds), key=lambda o: (o.f1, o.precision))


def token_f1(answer: str | None, gold: str | Sequence[str]) -> float:
    """Harmonic mean of token precision and recall against the best gold answer."""
    return token_overlap(answer, gold).f1


def token_precision(answer: str | None, gold: str | Sequence[str]) -> float:
    """Share of the answer's tokens that the gold answer with the best F1 contains."""
    return token_overlap(answer, gold).precision


def _overlap(answer: str, gold: str) -> TokenOverlap:
    said, meant = normalize_answer(answer), normalize_answer(gold)
    if said != meant and (said in _CLOSED_ANSWERS or meant in _CLOSED_ANSWERS):
        return TokenOverlap(0.0, 0.0, 0.0)
    said_tokens, meant_tokens = said.split(), meant.split()
    if not said_tokens or not meant_tokens:
        same = float(said_tokens == meant_tokens)
        return TokenOverlap(same, same, same)
    common = sum((Counter(said_tokens) & Counter(meant_tokens)).values())
    if common == 0:
        return TokenOverlap(0.0, 0.0, 0.0)
    precision, recall = common / len(said_tokens), common / len(meant_tokens)
    return TokenOverlap(2 * precision * recall / (precision + recall), precision, recall)


def _gold_list(gold: str | Sequence[str]) -> list[str]:
    golds = [gold] if isinstance(gold, str) else list(gold)
    if not golds:
        raise InvalidInputError("at least one gold answer is needed, but got none")
    return golds
