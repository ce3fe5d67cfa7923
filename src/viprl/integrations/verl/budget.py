"""The step's budget against verl's batch sizes: rule and numbers before a run starts, not after an hour.

Notation: B prompts (``data.train_batch_size``), n mean rollouts (``rollout.n``), C rollouts of a step, L and U the
bounds of a group, m = ``ppo_mini_batch_size * n`` rows of a mini-batch, D data-parallel size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from viprl.errors import ConfigurationError
from viprl.integrations.verl.options import select
from viprl.settings import AllocationSettings


@dataclass(frozen=True)
class StepBudget:
    """A step's checked numbers.

    Attributes:
        prompts: B.
        rollouts: C, spent exactly.
        min_group_size, max_group_size: L, U.
        multiple: the batch's rows must divide by it, else verl adds padding rows.
    """

    prompts: int
    rollouts: int
    min_group_size: int
    max_group_size: int
    multiple: int

    def of(self, prompts: int) -> int:
        """Rollouts for a submission of another size, in proportion and within the bounds."""
        if prompts == self.prompts:
            return self.rollouts
        share = round(self.rollouts * prompts / self.prompts)
        return min(max(share, prompts * self.min_group_size), prompts * self.max_group_size)


def data_parallel_size(config: Any) -> int:
    """D of the actor: GPUs divided by the sizes of the model-parallel groups."""
    gpus = int(select(config, "trainer.n_gpus_per_node", 1)) * int(select(config, "trainer.nnodes", 1))
    actor = "actor_rollout_ref.actor"
    if select(config, f"{actor}.strategy") == "megatron":
        sizes = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
        model_parallel = math.prod(int(select(config, f"{actor}.megatron.{size}", 1)) for size in sizes)
    else:
        inner = select(config, f"{actor}.fsdp_config.ulysses_sequence_parallel_size", 1)
        model_parallel = max(int(select(config, f"{actor}.ulysses_sequence_parallel_size", 1)), int(inner))
    return max(1, gpus // model_parallel)


def batches_offered(config: Any, candidates: int, rows: int) -> int:
    """How many batches of prompts a step is offered: ``candidates``, or as many as an epoch of so many rows has."""
    prompts = int(select(config, "data.train_batch_size"))
    fetch = int(select(config, "data.gen_batch_size", prompts))
    return max(1, min(candidates, rows // fetch * fetch // prompts))


def check_budget(config: Any, settings: AllocationSettings) -> tuple[AllocationSettings, StepBudget]:
    """The settings with the step's budget and bounds, and the step's numbers.

    Raises:
        ConfigurationError: B L <= C <= B U does not hold, C is no multiple of lcm(D, m), a mini-batch does not divide
            over the ranks or into micro-batches, or generation batches do not make up a training batch.
    """
    prompts, mean = (_count(config, path) for path in ("data.train_batch_size", "actor_rollout_ref.rollout.n"))
    settings = settings.for_step(prompts, prompts * mean if settings.budget is None else settings.budget)
    budget, low, high = (int(x or 0) for x in (settings.budget, settings.min_group_size, settings.max_group_size))
    multiple = _check_rows(config, budget, prompts, mean)
    generated = select(config, "data.gen_batch_size")
    if generated is not None and prompts % int(generated):
        raise ConfigurationError(
            f"data.train_batch_size must be a multiple of data.gen_batch_size, but got {prompts} and {generated}"
        )
    return settings, StepBudget(prompts, budget, low, high, multiple)


def _count(config: Any, path: str) -> int:
    value = select(config, path)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{path} must be a positive integer, but got {value!r}")
    return value


def _check_rows(config: Any, budget: int, prompts: int, mean: int) -> int:
    """lcm(D, m); verl pads the batch with empty rows up to a multiple of it."""
    ranks = data_parallel_size(config)
    mini = int(select(config, "actor_rollout_ref.actor.ppo_mini_batch_size", prompts)) * mean
    if mini % ranks:
        raise ConfigurationError(
            "ppo_mini_batch_size * rollout.n must be a multiple of the data-parallel size, but got "
            f"{mini // mean} * {mean} = {mini} rows for {ranks} ranks"
        )
    multiple = math.lcm(ranks, mini)
    if budget % multiple:
        nearest = sorted({max(multiple, budget // multiple * multiple), -(-budget // multiple) * multiple})
        raise ConfigurationError(
            "`budget` must be a multiple of lcm(data-parallel size, ppo_mini_batch_size * rollout.n), or verl adds "
            f"padding rows, but got {budget} for lcm({ranks}, {mini // mean} * {mean}) = {multiple}; "
            f"nearest: {' or '.join(map(str, nearest))}"
        )
    micro = select(config, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu")
    if micro and not select(config, "actor_rollout_ref.actor.use_dynamic_bsz", False) and (mini // ranks) % int(micro):
        raise ConfigurationError(
            "a rank's mini-batch must be a multiple of ppo_micro_batch_size_per_gpu, but got "
            f"{mini} / {ranks} = {mini // ranks} rows for micro-batches of {micro}"
        )
    return multiple
