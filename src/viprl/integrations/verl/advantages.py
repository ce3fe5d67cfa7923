"""Advantage estimators for unequal groups, registered with verl.

``viprl_dr_grpo``, ``viprl_rloo``, ``viprl_grpo`` and ``viprl_maxrl`` carry the factor (C/B)/n_q, so that every prompt
weighs the same in a loss that averages over rollouts; the same names with ``_rollout`` leave it out. A
group of one, a group of equal rewards, a missing (NaN) reward and verl's padding rows get advantage 0, and the latter
two count nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo.core_algos import register_adv_est

from viprl.advantages import advantages_by_row
from viprl.integrations.verl.checks import OWN_ESTIMATORS, ROLLOUT_ESTIMATORS

VERL_EPSILON = 1e-6  # verl's constant beside the standard deviation
_PADDING = re.compile(r"^pad[0-9a-f]{32}$")

Estimator = Callable[..., tuple[torch.Tensor, torch.Tensor]]

NO_WEIGHTS: Mapping[Any, float] = MappingProxyType({})
_weights: ContextVar[Mapping[Any, float]] = ContextVar("viprl_prompt_weights", default=NO_WEIGHTS)


@contextmanager
def weighing(weights: Mapping[Any, float]) -> Iterator[None]:
    """While it lasts, the estimators multiply a group's advantages by the weight of its uid (1 where there is none).

    verl hands an estimator the rows' uids, and nothing else that could carry what a selection weighs prompts by.
    """
    token = _weights.set(weights)
    try:
        yield
    finally:
        _weights.reset(token)


def is_padding(uid: Any) -> bool:
    """Whether a row's uid is one that verl gives to the rows it pads a batch with."""
    return isinstance(uid, str) and _PADDING.match(uid) is not None


def outcome_advantages(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Sequence[Any],
    *,
    estimator: str,
    prompt_weighting: str,
    epsilon: float = VERL_EPSILON,
    weights: Mapping[Any, float] = NO_WEIGHTS,
) -> torch.Tensor:
    """Advantages (R, T) of R rows with T token positions from the sum of each row's token rewards.

    Args:
        token_level_rewards: (R, T); NaN marks a missing reward.
        response_mask: (R, T), 1 for the rollout's own tokens.
        index: (R,) uid of the group of every row, in any order.
        estimator: "dr_grpo", "rloo", "grpo" or "maxrl".
        prompt_weighting: "equal" or "rollout"; see ``viprl.advantages``.
        epsilon: beside the standard deviation of "grpo".
        weights: of groups, by uid; 1 where there is none.
    """
    rewards = token_level_rewards.detach().sum(dim=-1).to(torch.float64).cpu().numpy()
    groups: dict[Any, int] = {}
    rows = np.array([groups.setdefault(uid, len(groups)) for uid in index], dtype=np.int64)
    padding = np.array([is_padding(uid) for uid in index], dtype=bool)
    values = advantages_by_row(
        np.where(padding, np.nan, rewards),
        rows,
        len(groups),
        estimator,
        epsilon=epsilon,
        prompt_weighting=prompt_weighting,
    )
    values = values * np.array([weights.get(uid, 1.0) for uid in index])
    column = torch.as_tensor(values, dtype=token_level_rewards.dtype, device=response_mask.device)
    return column.unsqueeze(-1) * response_mask


def _estimator(name: str, prompt_weighting: str) -> Estimator:
    def compute(
        token_level_rewards: torch.Tensor,
        response_mask: torch.Tensor,
        index: Sequence[Any],
        epsilon: float = VERL_EPSILON,
        config: Any = None,
        **unused: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        advantages = outcome_advantages(
            token_level_rewards,
            response_mask,
            index,
            estimator=name,
            prompt_weighting=prompt_weighting,
            epsilon=epsilon,
            weights=_weights.get(),
        )
        return advantages, advantages

    compute.__name__ = f"compute_viprl_{name}_{prompt_weighting}"
    compute.__doc__ = f"{name} on unequal groups, prompt weighting {prompt_weighting!r}; see ``outcome_advantages``."
    return compute


ESTIMATORS: dict[str, Estimator] = {
    **{registered: _estimator(name, "equal") for registered, name in OWN_ESTIMATORS.items()},
    **{registered: _estimator(name, "rollout") for registered, name in ROLLOUT_ESTIMATORS.items()},
}
for _name, _function in ESTIMATORS.items():
    register_adv_est(_name)(_function)
