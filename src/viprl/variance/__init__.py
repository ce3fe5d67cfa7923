"""STEP 2: success probability and group size -> gradient variance.

A model gives v_q(n), the variance of prompt q's gradient estimate from n rollouts, up to one common factor (sigma_Z^2,
the variance of a rollout's score). The solver multiplies it by per-prompt scale factors where these are known.
"""

from viprl.variance.base import BiasWarning, Realised, VarianceModel
from viprl.variance.grpo import GRPO, RelativeGRPO
from viprl.variance.maxrl import MaxRL
from viprl.variance.outcome_moments import OutcomeMoments
from viprl.variance.separable import RLOO, DrGRPO, SeparableVariance

__all__ = [
    "GRPO",
    "RLOO",
    "BiasWarning",
    "DrGRPO",
    "MaxRL",
    "OutcomeMoments",
    "Realised",
    "RelativeGRPO",
    "SeparableVariance",
    "VarianceModel",
]
