"""TRL's GRPO and RLOO trainers with adaptive rollout allocation (viprl's extra ``trl``)."""

from viprl.errors import MissingDependencyError

try:
    import trl as _trl  # noqa: F401
except ImportError as error:
    raise MissingDependencyError.of("a TRL trainer", "trl") from error

from viprl.integrations.trl.config import AdaptiveGRPOConfig, AdaptiveRLOOConfig
from viprl.integrations.trl.mixin import HISTORY_FOLDER, AdaptiveRolloutMixin, Step
from viprl.integrations.trl.trainers import AdaptiveGRPOTrainer, AdaptiveRLOOTrainer

__all__ = [
    "HISTORY_FOLDER",
    "AdaptiveGRPOConfig",
    "AdaptiveGRPOTrainer",
    "AdaptiveRLOOConfig",
    "AdaptiveRLOOTrainer",
    "AdaptiveRolloutMixin",
    "Step",
]
