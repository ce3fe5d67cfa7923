"""Which additions there are, and which of them are held out."""

from __future__ import annotations

import hashlib
import random

from viprl.errors import InvalidInputError

Addition = tuple[int, int]

DIGITS = ((1, 2), (2, 2), (2, 3), (3, 3))  # digits of the two terms; drawn with equal shares
HELD_OUT_TENTHS = 1  # one addition in ten is held out: neither trained on nor imitated in the warm start


def is_held_out(addition: Addition) -> bool:
    """Whether an addition belongs to the held-out tenth, from a hash of its text."""
    digest = hashlib.sha256(f"{addition[0]}+{addition[1]}".encode()).digest()
    return digest[0] * 10 // 256 < HELD_OUT_TENTHS


def draw_additions(size: int, *, seed: int, held_out: bool) -> list[Addition]:
    """``size`` different additions in random order, all held out or none of them.

    Raises:
        InvalidInputError: there are not that many.
    """
    limit = 50_000 if held_out else 500_000
    if size > limit:
        raise InvalidInputError(f"at most {limit} additions can be drawn, but got {size}")
    rng = random.Random(f"{seed}/{held_out}")
    seen: dict[Addition, None] = {}
    while len(seen) < size:
        digits = DIGITS[rng.randrange(len(DIGITS))]
        a, b = (rng.randrange(0 if d == 1 else 10 ** (d - 1), 10**d) for d in digits)
        if is_held_out((a, b)) == held_out:
            seen[(a, b)] = None
    return list(seen)
