"""A pool of rollouts per prompt with their gradients' inner products, and what it says about variances.

Notation: Q prompts, N_q rollouts of prompt q. The pool keeps Gram matrices, never gradients.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from viprl._arrays import FloatArray
from viprl._files import read_arrays
from viprl.errors import InvalidInputError
from viprl.gradient.moments import GroupMoments, OutcomeMeans, group_moments, outcome_means

AGGREGATIONS = ("sum", "mean")


@dataclass(frozen=True)
class PromptPool:
    """Rollouts of one prompt.

    Attributes:
        prompt_id: stable id.
        rewards: (N,).
        gram: (N, N) inner products of the gradients of the summed log-probabilities.
        lengths: (N,) tokens.
        proxies: name -> (N,) values of ``viprl.gradient.proxies``.
    """

    prompt_id: str
    rewards: FloatArray
    gram: FloatArray
    lengths: FloatArray
    proxies: dict[str, FloatArray] = field(default_factory=dict)

    @property
    def mean_reward(self) -> float:
        return float(self.rewards.mean())

    @property
    def mixed(self) -> bool:
        """Whether both a success and a failure were seen."""
        return bool(np.ptp(self.rewards) > 0)

    def gram_for(self, aggregation: str) -> FloatArray:
        """Inner products of H: "sum" over a rollout's tokens, or the paper's "mean" over them."""
        if aggregation not in AGGREGATIONS:
            raise InvalidInputError(f"aggregation must be one of {AGGREGATIONS}, but got {aggregation!r}")
        return self.gram if aggregation == "sum" else self.gram / np.outer(self.lengths, self.lengths)

    def norms(self, aggregation: str = "sum") -> FloatArray:
        """(N,) Z = ||H||."""
        return np.sqrt(np.diag(self.gram_for(aggregation)))

    def moments(self, aggregation: str = "sum") -> GroupMoments:
        """The constants of the variance curve."""
        return group_moments(self.rewards, self.gram_for(aggregation))

    def outcomes(self, aggregation: str = "sum") -> OutcomeMeans:
        """E ||H||^2 given success and failure."""
        return outcome_means(self.rewards, self.gram_for(aggregation))

    def part(self, rows: ArrayLike) -> PromptPool:
        """The same prompt with some of the rollouts."""
        index = np.asarray(rows)
        return PromptPool(
            self.prompt_id,
            self.rewards[index],
            self.gram[np.ix_(index, index)],
            self.lengths[index],
            {name: values[index] for name, values in self.proxies.items()},
        )

    def split(self, share: float = 0.5, *, seed: int = 0) -> tuple[PromptPool, PromptPool]:
        """Two disjoint random parts, so that predictions and truth never share a rollout."""
        order = np.random.default_rng([seed, len(self.rewards)]).permutation(len(self.rewards))
        cut = round(share * len(order))
        return self.part(np.sort(order[:cut])), self.part(np.sort(order[cut:]))


def save_pools(path: str | os.PathLike[str], pools: Sequence[PromptPool]) -> None:
    """Write pools to one .npz file (no pickles)."""
    arrays: dict[str, Any] = {"prompt_ids": np.array([p.prompt_id for p in pools], dtype=np.str_)}
    for q, pool in enumerate(pools):
        arrays[f"rewards/{q}"] = pool.rewards
        arrays[f"gram/{q}"] = pool.gram
        arrays[f"lengths/{q}"] = pool.lengths
        for name, values in pool.proxies.items():
            arrays[f"proxies/{q}/{name}"] = values
    np.savez_compressed(path, **arrays)


def load_pools(path: str | os.PathLike[str]) -> list[PromptPool]:
    """Read what ``save_pools`` wrote.

    Raises:
        InvalidInputError: a damaged file, or one of something else.
    """
    data = read_arrays(path)
    pools = []
    try:
        for q, prompt_id in enumerate(data["prompt_ids"].tolist()):
            prefix = f"proxies/{q}/"
            own = {name[len(prefix) :]: values for name, values in data.items() if name.startswith(prefix)}
            pools.append(PromptPool(prompt_id, data[f"rewards/{q}"], data[f"gram/{q}"], data[f"lengths/{q}"], own))
    except KeyError as error:
        raise InvalidInputError(f"{path} must hold pools as `save_pools` writes them, but lacks {error}") from error
    return pools
