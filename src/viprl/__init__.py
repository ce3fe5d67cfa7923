"""viprl: adaptive rollout allocation for reinforcement learning with verifiable rewards."""

from __future__ import annotations

import importlib
from typing import Any

from viprl._restore import RestoreReport
from viprl.advantages import group_advantages
from viprl.allocation import VIP, Uniform, solve_allocation
from viprl.allocator import RolloutAllocator
from viprl.build import build_allocator, build_stream
from viprl.errors import (
    CheckpointError,
    ConfigurationError,
    InfeasibleBudgetError,
    InvalidInputError,
    MissingDependencyError,
    PlanError,
    UnknownPromptError,
    ViprlError,
)
from viprl.feedback import Guard, OutageDetector
from viprl.plan import Plan
from viprl.prediction import (
    CalibratedPredictor,
    DiscountedBeta,
    GaussianProcessPredictor,
    LastRate,
    MovingAverage,
    Prediction,
    Predictor,
    RewardVariancePredictor,
    Ridge,
)
from viprl.prompts import PromptSet
from viprl.settings import AllocationSettings
from viprl.stream import Offer, StreamAllocator
from viprl.variance import GRPO, RLOO, DrGRPO, OutcomeMoments, VarianceModel

__version__ = "0.1.0"

_SUBPACKAGES = ("diagnose", "embeddings", "evaluation", "gradient", "integrations", "replay", "tasks", "testing")


def __getattr__(name: str) -> Any:
    """Subpackages that may need optional dependencies are imported on first use."""
    if name in _SUBPACKAGES:
        return importlib.import_module(f"viprl.{name}")
    raise AttributeError(f"module 'viprl' has no attribute {name!r}")


__all__ = [
    "GRPO",
    "RLOO",
    "VIP",
    "AllocationSettings",
    "CalibratedPredictor",
    "CheckpointError",
    "ConfigurationError",
    "DiscountedBeta",
    "DrGRPO",
    "GaussianProcessPredictor",
    "Guard",
    "InfeasibleBudgetError",
    "InvalidInputError",
    "LastRate",
    "MissingDependencyError",
    "MovingAverage",
    "Offer",
    "OutageDetector",
    "OutcomeMoments",
    "Plan",
    "PlanError",
    "Prediction",
    "Predictor",
    "PromptSet",
    "RestoreReport",
    "RewardVariancePredictor",
    "Ridge",
    "RolloutAllocator",
    "StreamAllocator",
    "Uniform",
    "UnknownPromptError",
    "VarianceModel",
    "ViprlError",
    "build_allocator",
    "build_stream",
    "group_advantages",
    "solve_allocation",
]
