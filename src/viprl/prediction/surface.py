"""Countable properties of a prompt's text: length, numbers, formulae, vocabulary."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from viprl._arrays import FloatArray

_NUMBER = re.compile(r"\d+")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_COUNTED = ("$", "\n", "?", ".", ",", "=", "(", "^", "_")

NAMES = (
    "characters",
    "words",
    "numbers",
    "commands",
    "digits_per_number",
    "largest_number",
    "share_upper_case",
    "share_digits",
    "share_distinct_words",
    "letters_per_word",
    *(f"count_{mark!r}" for mark in _COUNTED),
)


def surface_features(texts: Sequence[str]) -> FloatArray:
    """(N, len(NAMES)) raw values; counts as log(1 + count)."""
    table = np.empty((len(texts), len(NAMES)))
    for row, text in enumerate(texts):
        words = text.split()
        numbers = _NUMBER.findall(text)
        size = len(text) + 1
        letters = sum(map(len, words))
        digits = sum(map(len, numbers))
        largest = max((int(number[:9]) for number in numbers), default=0)
        table[row, :4] = len(text), len(words), len(numbers), len(_COMMAND.findall(text))
        table[row, 4:6] = digits / (1 + len(numbers)), largest
        table[row, 6] = sum(map(str.isupper, text)) / size
        table[row, 7] = digits / size
        table[row, 8] = len(set(words)) / (1 + len(words))
        table[row, 9] = letters / (1 + len(words))
        table[row, 10:] = [text.count(mark) for mark in _COUNTED]
    logs = [0, 1, 2, 3, 4, 5, *range(10, len(NAMES))]
    table[:, logs] = np.log1p(table[:, logs])
    return table
