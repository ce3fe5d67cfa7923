"""The rules that a replay compares: who gets how many rollouts."""

from viprl.replay.rules.base import Rule, Setting, proportional_sizes
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
    "proportional_sizes",
]
