"""Configuration: TRL's configs with the allocator's settings added."""

from __future__ import annotations

from dataclasses import dataclass, field

from trl import GRPOConfig, RLOOConfig

from viprl.advantages import ESTIMATORS
from viprl.errors import ConfigurationError
from viprl.integrations.predictors import PREDICTORS


@dataclass
class AdaptiveFields:
    """The fields that both configs add. Group sizes count rollouts of one prompt in one generation batch."""

    budget: int | None = field(
        default=None,
        metadata={
            "help": "Rollouts of one generation batch, C = num_generations x prompts. None takes "
            "`generation_batch_size`; another number is refused, so that a config can state its budget."
        },
    )
    min_group_size: int | None = field(
        default=None, metadata={"help": "Fewest rollouts of a prompt, L. None is min(3, num_generations)."}
    )
    max_group_size: int | None = field(
        default=None, metadata={"help": "Most rollouts of a prompt, U. None is 4 x num_generations."}
    )
    estimator: str | None = field(
        default=None,
        metadata={
            "help": "Advantages and variance model: 'dr_grpo', 'rloo' or 'grpo'. None follows the trainer: "
            "`scale_rewards` 'none' is 'dr_grpo', 'group' is 'grpo'; RLOO is 'rloo'."
        },
    )
    prompt_weighting: str = field(
        default="equal",
        metadata={
            "help": "'equal': every prompt weighs the same however many rollouts it got, by the factor (C/B)/n_q on "
            "its advantages. 'rollout': every rollout weighs the same."
        },
    )
    policy: str = field(
        default="vip", metadata={"help": "How to divide the budget: 'vip', 'uniform' or another policy of viprl."}
    )
    predictor: str = field(
        default="calibrated",
        metadata={"help": f"Success probabilities: one of {', '.join(PREDICTORS)}. Objects go to the trainer."},
    )
    embedding_model: str = field(
        default="none",
        metadata={
            "help": "Prompt embeddings for the predictor beside the text statistics that it computes itself: 'none', "
            "'packaged' (all-MiniLM-L6-v2 from a wheel), or the path or hub id of a sentence-transformers model."
        },
    )
    embedding_cache: str | None = field(default=None, metadata={"help": "Folder that keeps embeddings between runs."})
    variance: str = field(
        default="formula",
        metadata={
            "help": "'formula': the paper's, from success probabilities alone. 'learned': from the gradient norms of "
            "past rollouts, read off the backward pass (viprl.variance.OutcomeMoments); for rloo and dr_grpo."
        },
    )
    norm_layers: str = field(
        default="default",
        metadata={"help": "Layers whose gradients enter the norms of variance='learned': 'default' (few) or 'all'."},
    )
    prompt_id_column: str | None = field(
        default=None,
        metadata={
            "help": "Column with stable prompt ids. None looks for extra_info.prompt_id, then data_source/index, then "
            "hashes the prompt's text."
        },
    )
    side_information: list[str] | None = field(
        default=None, metadata={"help": "Numeric columns for the predictor, such as another model's pass rate."}
    )
    reward_values: list[float] | None = field(
        default=None,
        metadata={"help": "The reward of a failure and of a success. None tells {0, 1} and {-1, 1} apart by itself."},
    )
    guard: bool = field(
        default=True, metadata={"help": "Fall back to uniform groups while allocation does worse than uniform."}
    )
    history_format: str = field(
        default="parquet",
        metadata={"help": "Per-prompt history in <output_dir>/history: 'parquet', 'jsonl' or 'none'."},
    )

    def _check_adaptive(self) -> None:
        group = self.num_generations  # type: ignore[attr-defined]
        if self.min_group_size is None:
            self.min_group_size = min(3, group)
        if self.max_group_size is None:
            self.max_group_size = 4 * group
        if not 1 <= self.min_group_size <= group <= self.max_group_size:
            raise ConfigurationError(
                "1 <= min_group_size <= num_generations <= max_group_size must hold (the mean group size is "
                f"num_generations), but got min_group_size={self.min_group_size}, num_generations={group}, "
                f"max_group_size={self.max_group_size}"
            )
        total = self.generation_batch_size  # type: ignore[attr-defined]
        if self.budget is None:
            self.budget = total
        if self.budget != total:
            raise ConfigurationError(
                "budget == generation_batch_size must hold, which is per_device_train_batch_size x processes x "
                f"steps_per_generation, but got budget={self.budget} and "
                f"{self.per_device_train_batch_size} x {self.world_size} x "  # type: ignore[attr-defined]
                f"{self.steps_per_generation} = {total}"  # type: ignore[attr-defined]
            )
        _one_of("estimator", self.estimator, (None, *ESTIMATORS))
        _one_of("variance", self.variance, ("formula", "learned"))
        _one_of("norm_layers", self.norm_layers, ("default", "all"))
        _one_of("prompt_weighting", self.prompt_weighting, ("equal", "rollout"))
        _one_of("predictor", self.predictor, tuple(PREDICTORS))
        _one_of("history_format", self.history_format, ("parquet", "jsonl", "none"))
        if self.reward_values is not None and not (
            len(self.reward_values) == 2 and self.reward_values[0] < self.reward_values[1]
        ):
            raise ConfigurationError(f"reward_values must be [failure, success] ascending, got {self.reward_values}")


@dataclass
class AdaptiveGRPOConfig(AdaptiveFields, GRPOConfig):
    """``trl.GRPOConfig`` and the allocator's settings."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_adaptive()
        own = {"none": "dr_grpo", "group": "grpo"}.get(self.scale_rewards)
        if self.estimator is None:
            self.estimator = own  # None stays for scale_rewards="batch", which the trainer refuses
        elif own is not None and own != self.estimator and not (own == "dr_grpo" and self.estimator == "rloo"):
            needed = "group" if self.estimator == "grpo" else "none"
            raise ConfigurationError(
                f"estimator={self.estimator!r} needs scale_rewards={needed!r}, but got {self.scale_rewards!r}"
            )


@dataclass
class AdaptiveRLOOConfig(AdaptiveFields, RLOOConfig):
    """``trl.RLOOConfig`` and the allocator's settings."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_adaptive()
        if self.estimator is None:
            self.estimator = "rloo"
        if self.estimator != "rloo":
            raise ConfigurationError(
                f"the RLOO trainer computes leave-one-out advantages, but got estimator={self.estimator!r}; "
                "AdaptiveGRPOTrainer has the others"
            )


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise ConfigurationError(f"`{name}` must be one of {allowed}, but got {value!r}")
