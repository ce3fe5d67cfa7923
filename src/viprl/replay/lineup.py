"""Rules by the names that the command line and the report use.

A rule is written ``policy``, ``policy:predictor`` or, with the allocator's guard and quarantine around it,
``policy:predictor+guard``; policies and predictors are the registry's. Rules that learn from more than success counts
or look at rollouts inside the step are not for every log, see ``not_for``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from viprl import registry
from viprl.build import build_policy, build_predictor
from viprl.errors import ConfigurationError, nearest
from viprl.prediction import Predictor
from viprl.prompts import PromptSet
from viprl.replay.rules import (
    DAPO,
    GRESO,
    GVM,
    VIGOR,
    DynaMO,
    GuardedRule,
    MoPPS,
    PilotCommit,
    PolicyRule,
    Rule,
    Setting,
    UniformRule,
)
from viprl.replay.rules.predictive import SOURCES
from viprl.replay.worlds import World
from viprl.settings import AllocationSettings

OWN_RULES: dict[str, Callable[[int], Rule]] = {
    "uniform": lambda seed: UniformRule(),
    "gvm": lambda seed: GVM(),
    "dynamo": lambda seed: DynaMO(),
    "mopps": lambda seed: MoPPS(seed),
    "greso": lambda seed: GRESO(seed),
    "dapo": lambda seed: DAPO(),
    "vigor": lambda seed: VIGOR(),
    "pilot_commit": lambda seed: PilotCommit(),
}
DEFAULT_PREDICTOR = {"knapsack_rl": "last_rate"}  # as published; every other policy takes the calibrated predictor
ROUNDS = ("gvm", "vigor", "pilot_commit")  # look at rollouts inside the step
READ_AS = {"side_information": "side_information", "embedding_model": "embeddings"}  # setting -> what predictors read
OWN_EMBEDDINGS = "the prompts' own"
SPREAD_POLICIES = ("vip", "relaxed")  # go by the predicted variance alone


@dataclass(frozen=True)
class RuleName:
    """A parsed rule name."""

    policy: str
    predictor: str | None
    guarded: bool

    @property
    def text(self) -> str:
        """The canonical spelling."""
        tail = "" if self.predictor is None else f":{self.predictor}"
        return f"{self.policy}{tail}{'+guard' if self.guarded else ''}"

    def check_embeddings(self, known: bool) -> None:
        """Raises ConfigurationError where the predictor needs embeddings and none are known."""
        if self.predictor is not None and not known:
            if "embeddings" in registry.find("predictor", self.predictor).needs:
                raise ConfigurationError(
                    f"predictor={self.predictor!r} needs embeddings (--prompts, --embeddings), but got none"
                )

    def read(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the settings about what is known of prompts that the rule's predictor reads."""
        reads = () if self.predictor is None else registry.find("predictor", self.predictor).reads
        return {name: value for name, value in settings.items() if READ_AS[name] in reads}


def parse_rule(text: str) -> RuleName:
    """Read ``policy[:predictor][+guard]``.

    Raises:
        ConfigurationError: an unknown policy or predictor, or a guard where there is nothing to guard.
    """
    body, plus, guard = text.strip().partition("+")
    policy, colon, predictor = body.partition(":")
    if plus and guard != "guard":
        raise ConfigurationError(f"the only addition to a rule is '+guard', but got {text!r}")
    if policy in OWN_RULES:
        if colon or plus:
            raise ConfigurationError(f"{policy!r} takes neither a predictor nor a guard, but got {text!r}")
        return RuleName(policy, None, False)
    policies = {spelling: e.name for e in registry.entries("policy") for spelling in (e.name, *e.aliases)}
    if policy not in policies:
        known = list(dict.fromkeys((*registry.names("policy"), *OWN_RULES)))
        near = nearest(policy, known)
        raise ConfigurationError(f"a rule's `policy` must be one of {', '.join(known)}, but got {policy!r}{near}")
    chosen = predictor if colon else DEFAULT_PREDICTOR.get(policies[policy], "calibrated")
    entry = registry.find("predictor", chosen)
    return RuleName(policies[policy], (*entry.aliases, entry.name)[0], bool(plus))


def build_rule(name: RuleName, prompts: PromptSet, setting: Setting, seed: int) -> Rule:
    """A fresh rule.

    Raises:
        ConfigurationError: the predictor needs embeddings and there are none.
    """
    if name.predictor is None:
        return OWN_RULES[name.policy](seed)
    name.check_embeddings(prompts.embeddings is not None)
    policy, predictor = build_policy(name.policy), predictor_over(prompts, name.predictor)
    if name.guarded:
        return GuardedRule(name.text, policy, predictor, setting)
    return PolicyRule(name.text, policy, predictor)


def predictor_over(prompts: PromptSet, name: str) -> Predictor:
    """The predictor of that name over the prompts, with their embeddings where it reads any."""
    entry = registry.find("predictor", name)
    own = "embeddings" in entry.reads and prompts.embeddings is not None
    settings = AllocationSettings(predictor=entry.name, embedding_model=OWN_EMBEDDINGS if own else "none")
    predictor: Predictor = build_predictor(prompts, settings)
    return predictor


def not_for(name: RuleName, world: World) -> str | None:
    """Why a rule cannot be replayed in this world; None where it can."""
    real = name.predictor is not None and registry.find("predictor", name.predictor).rewards == "real"
    if world.rewards == "real":
        if name.text == "uniform" or (real and name.policy in SPREAD_POLICIES and not name.guarded):
            return None
        return (
            "the log has real rewards and no successes, so a rule must be uniform or vip:reward_variance; log the "
            "successes (the trainers' success_reward) for the others"
        )
    if real and name.guarded:
        return "a guarded rule learns from successes, so its predictor must be one of success probabilities"
    if world.rewards == "named success" and name.policy in ROUNDS:
        return "it looks at successes inside the step, and the log has only the variance of the whole group's rewards"
    return None


def source_of(name: RuleName) -> str:
    """Where a rule comes from, and what its predictor is."""
    if name.predictor is None:
        return OWN_RULES[name.policy](0).source
    summary = registry.find("predictor", name.predictor).summary
    text = f"{SOURCES.get(name.policy, name.policy)}; predictor: {summary}"
    return f"{text}; with viprl's guard and quarantine of outages" if name.guarded else text


def default_lineup(prompts: PromptSet, world: World) -> list[str]:
    """Every published rule, and VIP with every predictor, that the data allow."""
    names = ["uniform", "vip:calibrated", "vip:calibrated+guard", "vip:beta", "vip:last_rate", "vip:moving_average"]
    if prompts.embeddings is not None:
        names += ["vip:ridge", "vip:gp"]
    names += ["inverse_accuracy:calibrated", "inverse_variance:calibrated", "knapsack_rl:last_rate"]
    names += ["gvm", "dynamo", "mopps", "greso", "dapo", "vigor", "pilot_commit"]
    if world.rewards == "real":
        names = ["uniform", "vip:reward_variance"]
    return [name for name in names if not_for(parse_rule(name), world) is None]
