"""The rules that a replay compares: who gets how many rollouts."""

from viprl.replay.rules.base import Rule, Setting, formula, proportional_sizes
from viprl.replay.rules.predictive import DynaMO, GuardedRule, PolicyRule, UniformRule
from viprl.replay.rules.rounds import DAPO, GVM, VIGOR, PilotCommit
from viprl.replay.rules.selection import GRESO, MoPPS

__all__ = [
    "DAPO",
    "GRESO",
    "GVM",
    "VIGOR",
    "DynaMO",
    "GuardedRule",
    "MoPPS",
    "PilotCommit",
    "PolicyRule",
    "Rule",
    "Setting",
    "UniformRule",
    "formula",
    "proportional_sizes",
]
