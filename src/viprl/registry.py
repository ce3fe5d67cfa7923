"""Names of predictors, variance models, policies, estimators and selections: one table for all who use names.

An entry names its class by path, so that a name can be checked without importing what it stands for.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Literal

from viprl.errors import ConfigurationError, nearest

Kind = Literal["predictor", "variance", "policy", "estimator", "selection"]


@dataclass(frozen=True)
class Entry:
    """One name.

    Attributes:
        name: canonical.
        path: ``module:attribute`` of what it stands for; empty for names that ``viprl.build`` resolves by rule.
        summary: what it is, in a line.
        aliases: other spellings.
        reads: of a predictor: which of "texts", "embeddings", "side_information" it uses.
        needs: of a predictor: which of these it cannot do without.
        rewards: "binary", or "real" where it learns reward variances instead of success probabilities.
        new_prompts: of a predictor: prompts may become known as they come.
    """

    name: str
    path: str
    summary: str
    aliases: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    rewards: Literal["binary", "real"] = "binary"
    new_prompts: bool = True

    def load(self) -> Any:
        """What the name stands for."""
        module, _, attribute = self.path.partition(":")
        return getattr(importlib.import_module(module), attribute)


_ALL = ("texts", "embeddings", "side_information")
_ENTRIES: dict[Kind, tuple[Entry, ...]] = {
    "predictor": (
        Entry(
            "calibrated",
            "viprl.prediction:CalibratedPredictor",
            "text, side information and own history in one posterior; the default",
            reads=_ALL,
        ),
        Entry(
            "discounted_beta",
            "viprl.prediction:DiscountedBeta",
            "independent discounted Beta posteriors",
            aliases=("beta",),
        ),
        Entry("last_rate", "viprl.prediction:LastRate", "each prompt's last success rate, taken as exact"),
        Entry("global_mean", "viprl.prediction:GlobalMean", "the last step's mean success rate for all"),
        Entry("moving_average", "viprl.prediction:MovingAverage", "the mean rate of the 1,024 newest samples, for all"),
        Entry(
            "ridge",
            "viprl.prediction:Ridge",
            "ridge on embeddings of the 1,024 newest samples",
            reads=("embeddings",),
            needs=("embeddings",),
            new_prompts=False,
        ),
        Entry(
            "gaussian_process",
            "viprl.prediction:GaussianProcessPredictor",
            "the paper's Algorithm 1 as printed (median bandwidth, eps 1e-6)",
            aliases=("gp",),
            reads=("embeddings",),
            needs=("embeddings",),
            new_prompts=False,
        ),
        Entry(
            "reward_variance",
            "viprl.prediction:RewardVariancePredictor",
            "the variance of real rewards, from text, side information and own history",
            reads=_ALL,
            rewards="real",
        ),
    ),
    "variance": (
        Entry("auto", "", "learned where the estimator and the trainer allow it, the formula elsewhere"),
        Entry("formula", "", "the paper's, from success probabilities alone"),
        Entry("learned", "viprl.variance:OutcomeMoments", "from the gradient norms of past rollouts"),
    ),
    "policy": (
        Entry("vip", "viprl.allocation:VIP", "the exact minimiser of the summed gradient variance; the default"),
        Entry("uniform", "viprl.allocation:Uniform", "the same number of rollouts for every prompt"),
        Entry("relaxed", "viprl.allocation:Relaxed", "the paper's continuous relaxation, rounded by its Algorithm 2"),
        Entry("inverse_accuracy", "viprl.allocation:InverseAccuracy", "sizes in proportion to 1 - p"),
        Entry("inverse_variance", "viprl.allocation:InverseVariance", "sizes in proportion to 1 / E[p(1-p)]"),
        Entry("knapsack_rl", "viprl.allocation:KnapsackRL", "Knapsack-RL's value of a group", aliases=("knapsack",)),
    ),
    "estimator": (
        Entry("rloo", "viprl.variance:RLOO", "reward minus the mean of the group's other rewards"),
        Entry("dr_grpo", "viprl.variance:DrGRPO", "reward minus the group's mean"),
        Entry("grpo", "viprl.variance:RelativeGRPO", "reward minus the group's mean, over its standard deviation"),
        Entry(
            "maxrl",
            "viprl.variance:MaxRL",
            "reward minus the group's mean, over that mean",
        ),
    ),
    "selection": (
        Entry(
            "learnability", "viprl.selection:Learnability", "drawn with chances that grow with the value; the default"
        ),
        Entry("top", "viprl.selection:Top", "those worth most"),
        Entry(
            "unbiased",
            "viprl.selection:Unbiased",
            "drawn by value, weighted by the inverse chance: no bias",
        ),
        Entry("uniform", "viprl.selection:UniformSelection", "drawn with equal chances, the trainer's own step"),
    ),
}


def entries(kind: Kind) -> tuple[Entry, ...]:
    """All names of a kind, in the order in which they are listed to users."""
    return _ENTRIES[kind]


def names(kind: Kind) -> tuple[str, ...]:
    """The canonical names of a kind."""
    return tuple(entry.name for entry in _ENTRIES[kind])


def find(kind: Kind, name: str) -> Entry:
    """The entry of a name or alias.

    Raises:
        ConfigurationError: no such name; the message has the nearest one and all of them.
    """
    for entry in _ENTRIES[kind]:
        if name == entry.name or name in entry.aliases:
            return entry
    known = [spelling for entry in _ENTRIES[kind] for spelling in (entry.name, *entry.aliases)]
    raise ConfigurationError(
        f"`{kind}` must be one of {', '.join(names(kind))}, but got {name!r}{nearest(name, known)}"
    )


def canonical(kind: Kind, name: str) -> str:
    """The canonical name behind a name or alias; raises as ``find`` does."""
    return find(kind, name).name


def register(kind: Kind, entry: Entry) -> None:
    """Add a name of your own: it is then known to settings, trainers and replay alike.

    Raises:
        ConfigurationError: the name or an alias is taken.
    """
    taken = {spelling for known in _ENTRIES[kind] for spelling in (known.name, *known.aliases)}
    clash = taken.intersection((entry.name, *entry.aliases))
    if clash:
        raise ConfigurationError(f"a {kind} must have a name of its own, but {sorted(clash)} are taken")
    _ENTRIES[kind] = (*_ENTRIES[kind], entry)
