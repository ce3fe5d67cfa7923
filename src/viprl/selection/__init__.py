"""STEP 3: candidates, their values, a price -> which prompts get rollouts at all."""

from viprl.selection.coverage import Coverage
from viprl.selection.policies import (
    CHOSEN,
    EXPLORED,
    LEFT,
    OVERDUE,
    REASONS,
    Candidates,
    Learnability,
    Selection,
    SelectionPolicy,
    Top,
    Unbiased,
    UniformSelection,
)
from viprl.selection.price import Decision, decide, fill
from viprl.selection.value import SaturatingValue

__all__ = [
    "CHOSEN",
    "EXPLORED",
    "LEFT",
    "OVERDUE",
    "REASONS",
    "Candidates",
    "Coverage",
    "Decision",
    "Learnability",
    "SaturatingValue",
    "Selection",
    "SelectionPolicy",
    "Top",
    "Unbiased",
    "UniformSelection",
    "decide",
    "fill",
]
