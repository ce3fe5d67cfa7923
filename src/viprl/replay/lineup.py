"""Rules and predictors by the names that the command line and the report use.

A rule is written ``policy``, ``policy:predictor`` or, with the allocator's guard and quarantine around it,
``policy:predictor+guard``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from viprl.allocation import POLICIES
from viprl.errors import ConfigurationError
from viprl.prediction import (
    CalibratedPredictor,
    DiscountedBeta,
    GaussianProcessPredictor,
    GlobalMean,
    LastRate,
    MovingAverage,
    Predictor,
    Ridge,
)
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


@dataclass(frozen=True)
class Prompts:
    """What is known of the N prompts before the run.

    Attributes:
        ids: (N,).
        embeddings: (N, D) or None; row r belongs to ids[r].
        texts: (N,) or None.
        side_information: name -> (N,) numbers with NaN for missing, or None.
    """

    ids: tuple[str, ...]
    embeddings: Any = None
    texts: Sequence[str] | None = None
    side_information: Mapping[str, Any] | None = None


PREDICTORS: dict[str, tuple[Callable[[Prompts], Predictor], bool, str]] = {
    # name: (constructor, needs embeddings, what it is)
    "calibrated": (
        lambda p: CalibratedPredictor(
            p.embeddings, prompt_ids=p.ids, texts=p.texts, side_information=p.side_information
        ),
        False,
        "viprl's default: text, side information, own history with forgetting",
    ),
    "beta": (lambda p: DiscountedBeta(p.ids), False, "independent discounted Beta posteriors"),
    "last_rate": (lambda p: LastRate(p.ids), False, "each prompt's last success rate, taken as exact"),
    "global_mean": (lambda p: GlobalMean(p.ids), False, "the last step's mean success rate for all"),
    "gp": (
        lambda p: GaussianProcessPredictor(p.embeddings, prompt_ids=p.ids),
        True,
        "the paper's Algorithm 1 as printed (median bandwidth, eps 1e-6)",
    ),
    "moving_average": (lambda p: MovingAverage(p.ids), False, "the mean rate of the 1,024 newest samples, for all"),
    "ridge": (lambda p: Ridge(p.embeddings, prompt_ids=p.ids), True, "ridge on embeddings of the 1,024 newest samples"),
}

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
    if policy not in POLICIES:
        raise ConfigurationError(f"a rule must be one of {sorted({*POLICIES, *OWN_RULES})}, but got {policy!r}")
    chosen = predictor if colon else DEFAULT_PREDICTOR.get(policy, "calibrated")
    if chosen not in PREDICTORS:
        raise ConfigurationError(f"a predictor must be one of {sorted(PREDICTORS)}, but got {chosen!r}")
    return RuleName(policy, chosen, bool(plus))


def build_rule(name: RuleName, prompts: Prompts, setting: Setting, seed: int) -> Rule:
    """A fresh rule.

    Raises:
        ConfigurationError: the predictor needs embeddings and there are none.
    """
    if name.predictor is None:
        return OWN_RULES[name.policy](seed)
    constructor, needs_embeddings, _ = PREDICTORS[name.predictor]
    if needs_embeddings and prompts.embeddings is None:
        raise ConfigurationError(f"the predictor {name.predictor!r} needs the prompts' embeddings, but got none")
    policy, predictor = POLICIES[name.policy](), constructor(prompts)
    if name.guarded:
        return GuardedRule(name.text, policy, predictor, setting)
    return PolicyRule(name.text, policy, predictor)


def source_of(name: RuleName) -> str:
    """Where a rule comes from, and what its predictor is."""
    if name.predictor is None:
        return OWN_RULES[name.policy](0).source
    text = f"{SOURCES.get(name.policy, name.policy)}; predictor: {PREDICTORS[name.predictor][2]}"
    return f"{text}; with viprl's guard and quarantine of outages" if name.guarded else text


def default_lineup(prompts: Prompts) -> list[str]:
    """Every published rule, and VIP with every predictor that the data allow."""
    names = ["uniform", "vip:calibrated", "vip:calibrated+guard", "vip:beta", "vip:last_rate", "vip:moving_average"]
    if prompts.embeddings is not None:
        names += ["vip:ridge", "vip:gp"]
    names += ["inverse_accuracy:calibrated", "inverse_variance:calibrated", "knapsack_rl:last_rate"]
    return [*names, "gvm", "dynamo", "mopps", "greso", "dapo", "vigor", "pilot_commit"]
