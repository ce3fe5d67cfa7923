"""What an adaptive run refuses at start, with the reason and the remedy; the rest is warned about once."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from viprl.errors import ConfigurationError
from viprl.integrations.verl.budget import StepBudget, check_budget
from viprl.integrations.verl.options import AdaptiveOptions, select
from viprl.integrations.verl.weights import check_weights
from viprl.settings import AllocationSettings

logger = logging.getLogger("viprl")

PREFIX = "viprl_"
UNWEIGHTED = "_rollout"
OWN_ESTIMATORS = {f"{PREFIX}{name}": name for name in ("dr_grpo", "rloo", "grpo", "maxrl")}
ROLLOUT_ESTIMATORS = {f"{own}{UNWEIGHTED}": name for own, name in OWN_ESTIMATORS.items()}
# verl's own group estimators are right for unequal groups of two or more; they weigh a prompt by n_q.
VERL_ESTIMATORS = {"rloo": "rloo", "rloo_vectorized": "rloo", "grpo": "grpo", "grpo_vectorized": "grpo"}

# (path, value that is refused, what it does, what to do instead)
REFUSED = (
    (
        "algorithm.filter_groups.enable",
        "it makes verl fetch and submit prompts one by one, so there is no batch to divide a budget over",
        "leave it false and set +viprl.candidates=4: prompts that would be filtered out after their rollouts are left "
        "out before them",
    ),
    (
        "trainer.v1.sampler.sync_refill_failed_groups",
        "it makes verl fetch and submit prompts one by one, so there is no batch to divide a budget over",
        "leave it false: rollouts that fail are counted as missing, up to viprl.max_missing",
    ),
    (
        "trainer.v1.sampler.custom_sampler.path",
        "a custom sampler decides which groups of which step are trained, outside the step's plan",
        "remove it",
    ),
    (
        "skip.rollout_tq.enable",
        "replayed rollouts answer no plan of this run",
        "leave it false",
    ),
)


@dataclass(frozen=True)
class RunSettings:
    """A checked run.

    Attributes:
        options: the ``+viprl.*`` overrides.
        settings: what the allocator is to be, with budget and bounds.
        budget: the step's numbers.
        equal_weights: prompts weigh the same in the loss.
    """

    options: AdaptiveOptions
    settings: AllocationSettings
    budget: StepBudget
    equal_weights: bool

    @property
    def learns_variance(self) -> bool:
        """The step's log-probabilities teach the allocator."""
        return self.settings.variance == "learned" or (
            self.settings.variance == "auto" and self.settings.not_learnable() is None
        )


def check_config(config: Any) -> RunSettings:
    """Check a verl configuration for an adaptive run.

    Args:
        config: verl's DictConfig, or a nested mapping of the same shape.

    Raises:
        ConfigurationError: a setting cannot be honoured; the message gives the rule, the values and the remedy.
    """
    estimator, equal = check_estimator(config)
    options = AdaptiveOptions.from_config(config, estimator)
    for path, reason, remedy in REFUSED:
        if select(config, path, False):
            raise ConfigurationError(f"{path} must be off with adaptive rollouts: {reason}; {remedy}")
    _check_selection(config, options.settings)
    settings, budget = check_budget(config, options.settings)
    _check_group_of_one(config, budget.min_group_size)
    warnings = check_weights(config, equal=equal, mini_batches=_mini_batches(config, budget.rollouts))
    if not equal:
        warnings.append(
            f"algorithm.adv_estimator={select(config, 'algorithm.adv_estimator')} lets a prompt weigh n_q/C; "
            f"{PREFIX}{estimator} weighs all prompts the same, which is what the allocation minimises the variance of"
        )
        settings = settings.replace(prompt_weighting="rollout")
    for warning in warnings:
        logger.warning("viprl: %s", warning)
    return RunSettings(options, settings, budget, equal)


def check_estimator(config: Any) -> tuple[str, bool]:
    """(estimator's name for the variance model, prompts weigh the same).

    Raises:
        ConfigurationError: an estimator that is wrong on unequal groups.
    """
    name = str(select(config, "algorithm.adv_estimator"))
    if name in OWN_ESTIMATORS:
        return OWN_ESTIMATORS[name], True
    if name in ROLLOUT_ESTIMATORS:
        return ROLLOUT_ESTIMATORS[name], False
    remedy = f"use one of {', '.join((*OWN_ESTIMATORS, *ROLLOUT_ESTIMATORS))}"
    if name not in VERL_ESTIMATORS:
        raise ConfigurationError(
            f"algorithm.adv_estimator must centre a prompt's rewards on the prompt's own group, but got {name!r}; "
            + remedy
        )
    normalised = bool(select(config, "algorithm.norm_adv_by_std_in_grpo", True))
    estimator = VERL_ESTIMATORS[name]
    return ("dr_grpo" if estimator == "grpo" and not normalised else estimator), False


def _check_selection(config: Any, settings: AllocationSettings) -> None:
    name = str(select(config, "algorithm.adv_estimator"))
    if settings.candidates > 1 and settings.selection == "unbiased" and name in VERL_ESTIMATORS:
        raise ConfigurationError(
            f"viprl.selection=unbiased weighs prompts by their chances, which verl's estimator {name!r} cannot; use "
            f"one of {', '.join((*OWN_ESTIMATORS, *ROLLOUT_ESTIMATORS))}"
        )


def _check_group_of_one(config: Any, min_group_size: int) -> None:
    name = str(select(config, "algorithm.adv_estimator"))
    if min_group_size < 2 and name in VERL_ESTIMATORS and not name.endswith("_vectorized"):
        raise ConfigurationError(
            f"verl's estimator {name!r} gives a group of one its raw reward as advantage, so min_group_size >= 2 must "
            f"hold, but got {min_group_size}; use one of {', '.join(OWN_ESTIMATORS)}"
        )


def _mini_batches(config: Any, rollouts: int) -> int:
    mini = select(config, "actor_rollout_ref.actor.ppo_mini_batch_size")
    rows = int(mini or select(config, "data.train_batch_size")) * int(select(config, "actor_rollout_ref.rollout.n"))
    return max(1, rollouts // rows)
