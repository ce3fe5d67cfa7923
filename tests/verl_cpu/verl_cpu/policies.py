"""Policy "zigzag": very unequal groups from the first step on, whatever is predicted."""

from __future__ import annotations

from typing import Any

import numpy as np

from viprl import registry
from viprl.allocation import Policy


class Zigzag(Policy):
    """All prompts get L; the rest goes to the last ones of the batch, q to prompt q."""

    name = "zigzag"

    def allocate(
        self, prediction: Any, *, budget: int, min_group_size: int, max_group_size: int, **unused: Any
    ) -> np.ndarray:
        sizes = np.full(len(prediction), min_group_size, dtype=np.int64)
        rest = budget - int(sizes.sum())
        while rest:
            for q in reversed(range(len(sizes))):
                more = min(q, rest, max_group_size - int(sizes[q]))
                sizes[q] += more
                rest -= more
        return sizes


registry.register("policy", registry.Entry("zigzag", f"{__name__}:Zigzag", "unequal groups, for tests"))
