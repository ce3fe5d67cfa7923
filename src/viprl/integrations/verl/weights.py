"""Which of verl's loss settings keep equal prompt weights, derived once and tested on the gradient.

The estimators multiply a rollout's advantage by (C/B)/n_q. With S_j = sum_t of A_j * d log pi_t / d theta over the
rollout's own tokens and T_j their number, verl's aggregation of a mini-batch of M rows (on-policy: every ratio is 1)
gives the gradient

    token-sum                  sum_j S_j              = C/B sum_q mean_j S_j
    seq-mean-token-sum         1/M  sum_j S_j         = (C/M) 1/B sum_q mean_j S_j
    seq-mean-token-sum-norm    1/(M s) sum_j S_j      the same, over the constant s
    seq-mean-token-mean        1/M  sum_j S_j/T_j     = (C/M) 1/B sum_q mean_j S_j/T_j   (the paper's estimator)
    token-mean                 1/T  sum_j S_j         = (C/T) 1/B sum_q mean_j S_j, T = tokens of the mini-batch

where M = C when a step is one mini-batch; otherwise the sum over the step's mini-batches is the mean over prompts, and
each mini-batch is that in expectation. M is the configured number of rows, so padding rows and rows without a reward
only scale the step. T differs from one mini-batch to the next: under ``token-mean`` the weights are equal within a
mini-batch, and between mini-batches they follow the tokens, not the rollouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from viprl.errors import ConfigurationError
from viprl.integrations.verl.options import select

EXACT_AGGREGATIONS = ("token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")
MINI_BATCH_AGGREGATIONS = ("token-mean",)

# Losses that are linear in the advantage where the policy has not moved yet, whatever the aggregation.
LINEAR_LOSSES = ("vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "dro", "cispo", "bypass_mode")
# Losses that pick tokens by the size of their advantage: the weight changes which tokens are picked.
SELECTING_LOSSES = ("clip_cov", "kl_cov")
# torch.mean over a micro-batch, without the mini-batch's size: equal only if all micro-batches have the same size.
MICRO_BATCH_LOSSES = ("geo_mean",)


@dataclass(frozen=True)
class Verdict:
    """``level`` is "exact", "mini-batch", "warn" or "refuse"; ``reason`` says why, and what to do."""

    level: str
    reason: str = ""


def judge_loss(aggregation: str, loss_mode: str, *, mini_batches: int, dynamic_batches: bool) -> Verdict:
    """Do prompts weigh the same in this policy loss?

    Args:
        aggregation: ``actor.loss_agg_mode``.
        loss_mode: ``actor.policy_loss.loss_mode``.
        mini_batches: optimizer steps of a batch.
        dynamic_batches: ``actor.use_dynamic_bsz``, micro-batches of unequal size.
    """
    if loss_mode in MICRO_BATCH_LOSSES:
        if dynamic_batches:
            return Verdict(
                "refuse",
                f"policy_loss.loss_mode={loss_mode} averages each micro-batch by itself, so with use_dynamic_bsz=true "
                "a rollout's weight depends on its micro-batch; set actor.use_dynamic_bsz=false",
            )
        return Verdict("exact")
    if loss_mode in SELECTING_LOSSES:
        return Verdict(
            "warn",
            f"policy_loss.loss_mode={loss_mode} picks tokens by the size of their advantage, which carries the factor "
            "(C/B)/n_q: prompts with few rollouts are picked more often",
        )
    if loss_mode not in LINEAR_LOSSES:
        return Verdict("warn", f"policy_loss.loss_mode={loss_mode} has not been checked for equal prompt weights")
    if loss_mode == "sapo" or aggregation in EXACT_AGGREGATIONS:  # sapo fixes its own aggregation
        return Verdict("exact")
    if aggregation in MINI_BATCH_AGGREGATIONS:
        if mini_batches == 1:
            return Verdict("exact")
        return Verdict(
            "mini-batch",
            f"actor.loss_agg_mode={aggregation} divides by the tokens of each of the {mini_batches} mini-batches of a "
            "step, so prompts weigh the same within a mini-batch only; seq-mean-token-mean or seq-mean-token-sum-norm "
            "hold for the whole step",
        )
    return Verdict("refuse", f"actor.loss_agg_mode={aggregation} is unknown; use one of {EXACT_AGGREGATIONS}")


def check_weights(config: Any, *, equal: bool, mini_batches: int) -> list[str]:
    """Warnings about terms of the loss that do not weigh prompts equally.

    Args:
        config: verl's configuration.
        equal: the estimator's prompts weigh the same.
        mini_batches: optimizer steps of a batch.

    Raises:
        ConfigurationError: the policy loss breaks equal weights.
    """
    if not equal:
        return []
    actor = "actor_rollout_ref.actor"
    verdict = judge_loss(
        str(select(config, f"{actor}.loss_agg_mode", "token-mean")),
        str(select(config, f"{actor}.policy_loss.loss_mode", "vanilla")),
        mini_batches=mini_batches,
        dynamic_batches=bool(select(config, f"{actor}.use_dynamic_bsz", False)),
    )
    if verdict.level == "refuse":
        raise ConfigurationError(
            f"prompts must weigh the same in the loss, but {verdict.reason}, or choose an estimator with `_rollout`"
        )
    warnings = [verdict.reason] if verdict.level != "exact" else []
    terms = {
        "the KL loss": bool(select(config, f"{actor}.use_kl_loss", False)),
        "the entropy bonus": float(select(config, f"{actor}.entropy_coeff", 0.0)) != 0.0,
        "the distillation loss": bool(select(config, "distillation.enabled", False)),
    }
    counted = [name for name, on in terms.items() if on]
    if counted:
        warnings.append(
            f"{' and '.join(counted)} count rollouts, not prompts: there a prompt with many rollouts weighs more"
        )
    if select(config, "algorithm.rollout_correction.rollout_rs"):
        warnings.append("algorithm.rollout_correction.rollout_rs drops tokens or rollouts after n_q was counted")
    return warnings
