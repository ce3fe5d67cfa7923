"""Configuration: TRL's configs with the allocator's settings added."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from trl import GRPOConfig, RLOOConfig

from viprl.errors import ConfigurationError
from viprl.settings import AllocationSettings, settings_fields, settings_of

# how the command line of transformers spells a setting's type
_PLAIN = {"side_information": list[str] | None, "reward_values": list[float] | None}


def _plain_fields() -> list[tuple[str, Any, Any]]:
    """The fields of AllocationSettings in the types that transformers' argument parser reads."""
    kinds = {
        "str": str,
        "bool": bool,
        "int": int,
        "float": float,
        "float | None": float | None,
        "int | None": int | None,
        "str | None": str | None,
    }
    return [
        (
            item.name,
            _PLAIN.get(item.name) or kinds[str(item.type)],
            field(default=None if item.default == () else item.default, metadata=dict(item.metadata)),
        )
        for item in settings_fields()
    ]


_SettingsFields = dataclasses.make_dataclass("_SettingsFields", _plain_fields(), namespace={"__module__": __name__})


@dataclass
class AdaptiveFields(_SettingsFields):  # type: ignore[misc, valid-type]
    """The fields that both configs add: those of ``viprl.AllocationSettings`` and two of the trainer's own.

    Group sizes count rollouts of one prompt in one generation batch, whose C = generation_batch_size rollouts go to
    C / num_generations prompts.
    """

    norm_layers: str = field(
        default="default",
        metadata={"help": "Layers whose gradients enter the norms of a learned variance: 'default' (few) or 'all'."},
    )
    history_format: str = field(
        default="parquet",
        metadata={"help": "Per-prompt history in <output_dir>/history: 'parquet', 'jsonl' or 'none'."},
    )

    @property
    def settings(self) -> AllocationSettings:
        """What is said to the allocator."""
        return settings_of(self, side_information=self.side_information or ())

    def _check_adaptive(self, own_estimator: str | None) -> None:
        """Check the settings; fill in what follows from TRL's own."""
        settings = self.settings
        if settings.estimator is None and own_estimator is not None:
            settings = settings.replace(estimator=own_estimator)
        total, group = self.generation_batch_size, self.num_generations  # type: ignore[attr-defined]
        resolved = settings.for_step(total // group, total)
        for name in ("estimator", "predictor", "policy", "variance", "budget", "min_group_size", "max_group_size"):
            setattr(self, name, getattr(resolved, name))
        _one_of("norm_layers", self.norm_layers, ("default", "all"))
        _one_of("history_format", self.history_format, ("parquet", "jsonl", "none"))
        reason = self.gives_no_norms()
        if self.variance == "learned" and reason is not None:
            raise ConfigurationError(f"variance='learned' {reason}; use variance='formula' or 'auto'")

    def gives_no_norms(self) -> str | None:
        """Why a rollout's share of the loss is not its advantage times its log-probability; None where it is."""
        if getattr(self, "loss_type", None) is not None and self.beta > 0:  # type: ignore[attr-defined]
            return f"needs beta=0 (a KL term in the loss adds gradient of its own), but got beta={self.beta}"  # type: ignore[attr-defined]
        if getattr(self, "use_liger_kernel", False):
            return "sees no rollout's gradient inside Liger's fused loss, but got use_liger_kernel=True"
        for name in ("deepspeed", "fsdp"):
            if getattr(self, name, None):
                return f"needs whole gradients, which {name} divides over the processes"
        return None


@dataclass
class AdaptiveGRPOConfig(AdaptiveFields, GRPOConfig):
    """``trl.GRPOConfig`` and the allocator's settings."""

    def __post_init__(self) -> None:
        super().__post_init__()
        own = {"none": "dr_grpo", "group": "grpo"}.get(self.scale_rewards)
        self._check_adaptive(own)  # none for scale_rewards="batch", which the trainer refuses
        if own is not None and own != self.estimator and not (own == "dr_grpo" and self.estimator in ("rloo", "maxrl")):
            needed = "group" if self.estimator == "grpo" else "none"
            raise ConfigurationError(
                f"estimator={self.estimator!r} needs scale_rewards={needed!r}, but got {self.scale_rewards!r}"
            )


@dataclass
class AdaptiveRLOOConfig(AdaptiveFields, RLOOConfig):
    """``trl.RLOOConfig`` and the allocator's settings."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_adaptive("rloo")
        if self.estimator != "rloo":
            raise ConfigurationError(
                f"the RLOO trainer computes leave-one-out advantages, but got estimator={self.estimator!r}; "
                "AdaptiveGRPOTrainer has the others"
            )


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise ConfigurationError(f"`{name}` must be one of {allowed}, but got {value!r}")
