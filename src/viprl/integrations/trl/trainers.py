"""TRL's trainers with adaptive groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from trl import GRPOTrainer, RLOOTrainer

from viprl.integrations.trl.config import AdaptiveGRPOConfig, AdaptiveRLOOConfig
from viprl.integrations.trl.learned import LearnedVarianceMixin
from viprl.integrations.trl.mixin import AdaptiveRolloutMixin


class AdaptiveGRPOTrainer(LearnedVarianceMixin, AdaptiveRolloutMixin, GRPOTrainer):
    """``trl.GRPOTrainer`` whose prompts get as many rollouts as their gradient variance warrants.

    The config's ``estimator`` chooses the advantages: Dr. GRPO, GRPO with standard deviation, leave-one-out, or MaxRL.
    """

    _config_class = AdaptiveGRPOConfig
    _parent_class = GRPOTrainer

    def _is_parents_estimator(self) -> bool:
        return self.args.estimator not in ("rloo", "maxrl")


class AdaptiveRLOOTrainer(LearnedVarianceMixin, AdaptiveRolloutMixin, RLOOTrainer):
    """``trl.RLOOTrainer`` whose prompts get as many rollouts as their gradient variance warrants."""

    _config_class = AdaptiveRLOOConfig
    _parent_class = RLOOTrainer
    _policy_logps: Any = None  # (rows, tokens)
    _reference_logps: Any = None

    def _is_parents_estimator(self) -> bool:
        return True

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        if not torch.is_grad_enabled():
            # While scoring, TRL asks for the policy's log-probabilities and then for the reference's.
            self._policy_logps, self._reference_logps = self._reference_logps, result[0]
        return result

    def _penalty(self, output: Mapping[str, Any]) -> NDArray[np.float64] | float:
        if self.beta == 0.0:
            return 0.0
        per_token = self._policy_logps - self._reference_logps
        self._policy_logps = self._reference_logps = None
        return self.beta * self._gathered((per_token * output["completion_mask"]).sum(-1))
