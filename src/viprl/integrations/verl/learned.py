"""``+viprl.variance=learned``: the step's log-probabilities teach the allocator the gradient's variance.

verl's gradients lie in sharded workers, where no single rollout's can be told apart. But before it computes advantages
the trainer has the log-probability of every sampled token, and ``viprl.variance.surprisal`` turns these into
stand-ins for the rollouts' squared gradient norms. They are those of the policy gradient alone: a KL or entropy term in
the loss enters neither them nor the formula's variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viprl.integrations.verl.options import select
from viprl.variance.surprisal import surprisals

# ``_compute_old_log_prob`` writes the first in every mode: recomputed by the actor, or with
# ``rollout_correction.bypass_mode`` the rollout engine's.
FIELDS = ("old_log_probs", "response_mask")


def token_aggregation(config: Any) -> str:
    """ "mean" where the policy loss divides a rollout's gradient by its number of tokens, else "sum"."""
    actor = "actor_rollout_ref.actor"
    averaging = (
        select(config, f"{actor}.loss_agg_mode", "token-mean") == "seq-mean-token-mean"
        or select(config, f"{actor}.policy_loss.loss_mode", "vanilla") in ("sapo", "geo_mean")  # whatever the mode
    )
    return "mean" if averaging else "sum"


def squared_norms(log_probs: Sequence[Any], masks: Sequence[Any], aggregation: str) -> NDArray[np.float64]:
    """(R,) stand-ins for the rollouts' squared gradient norms.

    Args:
        log_probs: R tensors (T_j,), log-probabilities of the sampled tokens.
        masks: R tensors (T_j,), one for the rollout's own tokens.
        aggregation: see ``token_aggregation``.
    """
    rows = zip(log_probs, masks, strict=True)
    return np.array(
        [surprisals(log.float().cpu().numpy(), own.cpu().numpy(), aggregation=aggregation) for log, own in rows]
    )
