"""Which settings of TRL keep equal prompt weights, which do not, and which assume equal groups.

With ``prompt_weighting="equal"`` the advantages of a prompt with n_q rollouts carry the factor (C/B)/n_q. A loss keeps
equal prompt weights when it is a sum over rollouts of (advantage) x (something of that rollout alone), divided by a
number that is the same for all rollouts of the optimizer step.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from viprl.errors import ConfigurationError


@dataclass(frozen=True)
class LossRow:
    """One row of the table: does the loss keep equal prompt weights, and why."""

    equal: bool
    why: str


LOSSES: dict[str, LossRow] = {
    "grpo": LossRow(True, "mean over a rollout's tokens, then over the rollouts"),
    "sapo": LossRow(True, "as grpo; the gate depends on the ratio and the advantage's sign"),
    "dr_grpo": LossRow(True, "sum over tokens / (rollouts x max_completion_length)"),
    "dapo": LossRow(True, "sum over tokens / the tokens of the whole generation batch"),
    "cispo": LossRow(True, "as dapo"),
    "vespo": LossRow(True, "as dapo; the weight depends on the ratio and the advantage's sign"),
    "luspo": LossRow(True, "sum over tokens, then mean over the rollouts"),
    "bnpo": LossRow(False, "divided by the tokens of the micro-batch, which vary: equal only for one micro-batch"),
    "rloo": LossRow(True, "mean over the rollouts of RLOOTrainer; its KL is part of the reward"),
}


def refuse_unequal_assumptions(args: Any) -> None:
    """Settings that compute with equal groups, or that undo the weights, are refused.

    Raises:
        ConfigurationError: says the rule and the values.
    """
    if getattr(args, "multi_objective_aggregation", "sum_then_normalize") != "sum_then_normalize":
        raise ConfigurationError(
            "multi_objective_aggregation must be 'sum_then_normalize' with adaptive groups (the other normalises every "
            f"reward over equal groups and then over the batch), but got {args.multi_objective_aggregation!r}"
        )
    if getattr(args, "scale_rewards", "none") not in ("none", "group"):
        raise ConfigurationError(
            "scale_rewards must be 'none' or 'group' with adaptive groups (a standard deviation over the batch depends "
            f"on how the rollouts were divided), but got {args.scale_rewards!r}"
        )
    if getattr(args, "normalize_advantages", False):
        raise ConfigurationError(
            "normalize_advantages must be False with adaptive groups (it subtracts and divides by statistics over all "
            "rollouts, which depend on how they were divided), but got True"
        )
    if args.prompt_weighting != "equal" or getattr(args, "loss_type", None) != "bnpo":
        return
    micro_batches = (args.gradient_accumulation_steps, args.steps_per_generation, args.world_size)
    if micro_batches != (1, 1, 1):
        raise ConfigurationError(
            "loss_type='bnpo' keeps equal prompt weights only with one micro-batch on one process (it divides by the "
            "tokens of the micro-batch), but got gradient_accumulation_steps="
            f"{micro_batches[0]}, steps_per_generation={micro_batches[1]}, processes={micro_batches[2]}; "
            "use 'dapo', or prompt_weighting='rollout'"
        )


def terms_that_count_rollouts(args: Any, model_config: Any = None) -> list[str]:
    """Names of the loss terms in which a prompt weighs as many times as it has rollouts, whatever its advantages."""
    terms = []
    if hasattr(args, "loss_type") and args.beta != 0.0:
        terms.append(f"the KL penalty (beta={args.beta})")
    if getattr(args, "entropy_coef", 0.0) != 0.0 or getattr(args, "use_adaptive_entropy", False):
        terms.append("the entropy bonus")
    text = model_config.get_text_config() if hasattr(model_config, "get_text_config") else None
    coefficient = args.router_aux_loss_coef
    if coefficient is None:
        coefficient = getattr(text, "router_aux_loss_coef", 0.0)
    if coefficient and hasattr(text, "output_router_logits"):
        terms.append(f"the router's auxiliary loss (coefficient {coefficient})")
    return terms


def warn_about_rollout_terms(args: Any, model_config: Any = None) -> None:
    """One warning that names the loss terms without equal prompt weights."""
    terms = terms_that_count_rollouts(args, model_config)
    if args.prompt_weighting == "equal" and terms:
        warnings.warn(
            f"prompt_weighting='equal' covers the advantages; {', '.join(terms)} still count every rollout once, so "
            "prompts with more rollouts weigh more there",
            UserWarning,
            stacklevel=4,
        )
