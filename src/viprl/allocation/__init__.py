"""STEP 3: budget, bounds, costs -> group sizes."""

from viprl.allocation.exact import (
    InexactAllocationWarning,
    Solution,
    objective,
    solve_allocation,
    solve_with_bound,
)
from viprl.allocation.policies import (
    VIP,
    InverseAccuracy,
    InverseVariance,
    KnapsackRL,
    Policy,
    Relaxed,
    Uniform,
)
from viprl.allocation.problem import AllocationProblem, water_fill
from viprl.allocation.relaxation import Relaxation, round_sizes, solve_relaxation

__all__ = [
    "VIP",
    "AllocationProblem",
    "InexactAllocationWarning",
    "InverseAccuracy",
    "InverseVariance",
    "KnapsackRL",
    "Policy",
    "Relaxation",
    "Relaxed",
    "Solution",
    "Uniform",
    "objective",
    "round_sizes",
    "solve_allocation",
    "solve_relaxation",
    "solve_with_bound",
    "water_fill",
]
