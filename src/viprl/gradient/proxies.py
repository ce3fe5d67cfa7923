"""Stand-ins for a rollout's gradient norm that need no backward pass.

``logit_norm`` is the squared norm of the gradient at the logits: with pi the distribution of a token and y the token
sampled, d log pi(y) / d logits = e_y - pi, whose square is 1 - 2 pi(y) + sum_k pi(k)^2. Its sum over tokens takes the
layers below as isometries and the tokens' gradients as orthogonal.
"""

from __future__ import annotations

import torch
from torch import Tensor

PROXIES = ("logit_norm", "entropy", "surprisal", "length")


@torch.no_grad()
def proxies(chosen: Tensor, every: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Each (C,), summed over the tokens where ``mask`` is one.

    Args:
        chosen: (C, T) log-probabilities of the sampled tokens.
        every: (C, T, V) log-probabilities of all tokens.
        mask: (C, T).
    """
    pi = every.exp()
    collision = 1 - 2 * chosen.exp() + pi.square().sum(-1)
    return {
        "logit_norm": (collision * mask).sum(1),
        "entropy": (-(pi * every).sum(-1) * mask).sum(1),
        "surprisal": (-chosen * mask).sum(1),
        "length": mask.sum(1),
    }
