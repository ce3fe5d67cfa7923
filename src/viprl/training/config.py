"""The configuration of ``viprl train``: a YAML file and ``key=value`` overrides, checked before anything is loaded."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from viprl import registry
from viprl._yaml import parse_value, read_mapping
from viprl.errors import ConfigurationError, nearest
from viprl.settings import AllocationSettings, settings_fields, settings_of


@dataclass(frozen=True, kw_only=True)
class TrainConfig(AllocationSettings):
    """One training job: a run for every seed and every policy.

    Attributes, beside those of ``AllocationSettings``:
        task: a task's name, or a mapping of ``name`` and the task's own settings.
        model: ``tiny`` (the task's own), a folder, a hub id, or a ``.gguf`` file.
        reward: ``task``, or ``module:function`` or ``file.py:function`` in TRL's signature.
        output: folder of the job.
        compare: policies that are run beside ``policy``, for the report; ``uniform`` there is the trainer without
            viprl: equal groups for every prompt of the batch, also where ``candidates`` are chosen among otherwise.
        algorithm: TRL's trainer, ``grpo`` or ``rloo``; by default the estimator's own.
        group_size: mean rollouts of a prompt, so a step of ``budget`` rollouts has budget / group_size prompts.
        steps: optimizer steps; None leaves it to ``trainer.num_train_epochs``.
        seeds: one run each (data order and sampling).
        eval_every: steps between held-out evaluations; 0 evaluates at the start and the end only.
        eval_samples: rollouts a held-out prompt; eval_batch_size: rollouts generated together.
        resume: continue the job in ``output``. overwrite: replace it.
        cache: folder for warm starts and embeddings; ``$VIPRL_CACHE`` or ``~/.cache/viprl`` by default.
        save_model: keep each run's final model.
        trainer: any field of TRL's config.
    """

    task: str | Mapping[str, Any]
    output: str
    model: str = "tiny"
    reward: str = "task"
    compare: Sequence[str] = ()
    estimator: str = "rloo"  # type: ignore[assignment]  # a job must have one
    algorithm: str | None = None
    budget: int = 256  # type: ignore[assignment]
    prompt_id_column: str | None = "prompt_id"
    group_size: int = 8
    steps: int | None = None
    seeds: Sequence[int] = (0,)
    eval_every: int = 25
    eval_samples: int = 4
    eval_batch_size: int = 256
    resume: bool = False
    overwrite: bool = False
    cache: str | None = None
    save_model: bool = True
    trainer: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_types(self)
        self._set("compare", tuple(registry.canonical("policy", name) for name in self.compare))
        if len(set(self.policies)) != len(self.policies):
            raise ConfigurationError(f"policies must differ, but got policy={self.policy}, compare={self.compare}")
        if self.estimator is None or self.budget is None:
            raise ConfigurationError("a job must have `estimator` and `budget`, but got None")
        if self.algorithm is not None:
            _one_of("algorithm", self.algorithm, ("grpo", "rloo"))
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise ConfigurationError(
                f"`seeds` must be one or more different integers of at least 0, but got {list(self.seeds)}"
            )
        if self.group_size < 2 or self.budget % self.group_size:
            raise ConfigurationError(
                "group_size >= 2 and budget a positive multiple of it must hold, but got "
                f"(budget={self.budget}, group_size={self.group_size})"
            )
        for policy in self.policies:  # what the trainer would refuse is refused now
            settings_of(self, policy=policy).for_step(self.budget // self.group_size, self.budget)
        for name in ("eval_samples", "eval_batch_size"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} >= 1 must hold, but got {getattr(self, name)}")
        if self.eval_every < 0 or (self.steps is not None and self.steps < 1):
            raise ConfigurationError(
                f"eval_every >= 0, steps >= 1 must hold, but got ({self.eval_every}, {self.steps})"
            )
        self._check_trainer()

    @property
    def policies(self) -> tuple[str, ...]:
        """All policies of the job, the main one first."""
        return (self.policy, *self.compare)

    def is_control(self, policy: str) -> bool:
        """Whether this run of the job shows the trainer without viprl."""
        return policy == "uniform" and self.policy != "uniform"

    @property
    def task_name(self) -> str:
        """The task's name, however it was given."""
        return self.task if isinstance(self.task, str) else str(self.task["name"])

    @property
    def task_settings(self) -> dict[str, Any]:
        """What the task is built with beside its name."""
        return {} if isinstance(self.task, str) else {k: v for k, v in self.task.items() if k != "name"}

    @property
    def trainer_kind(self) -> str:
        """``rloo`` or ``grpo``: TRL's trainer."""
        return self.algorithm or ("rloo" if self.estimator == "rloo" else "grpo")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as a configuration file holds them."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    def _check_trainer(self) -> None:
        known = trainer_fields(self.trainer_kind)
        for key in self.trainer:
            if key in OWNED:
                raise ConfigurationError(f"trainer.{key} is set by {OWNED[key]!r}, but got it under `trainer`")
            if key not in known:
                free = [name for name in known if name not in OWNED]
                close = [SHORT[key]] if key in SHORT else difflib.get_close_matches(key, free, n=1, cutoff=0.6)
                nearest = f"; nearest: {f'trainer.{close[0]}'!r}" if close else ""
                raise ConfigurationError(f"every key must be one that is known, but got 'trainer.{key}'{nearest}")


# what people write for fields of TRL's config
SHORT = {
    "lr": "learning_rate",
    "batch_size": "per_device_train_batch_size",
    "epochs": "num_train_epochs",
    "max_tokens": "max_completion_length",
    "max_new_tokens": "max_completion_length",
}

# fields of TRL's config that follow from ours
OWNED = {
    "output_dir": "output",
    "max_steps": "steps",
    "seed": "seeds",
    "num_generations": "group_size",
    "generation_batch_size": "budget",
    **{item.name: item.name for item in settings_fields()},
    "embedding_cache": "cache",
    "resume_from_checkpoint": "resume",
}


def trainer_fields(kind: str) -> list[str]:
    """Names that may stand under ``trainer:``."""
    from viprl.integrations.trl import AdaptiveGRPOConfig, AdaptiveRLOOConfig

    config = AdaptiveRLOOConfig if kind == "rloo" else AdaptiveGRPOConfig
    return [f.name for f in dataclasses.fields(config) if f.init]


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a YAML file and apply overrides.

    Args:
        overrides: ``key=value``, ``--key=value`` or ``--key value``; values are YAML; dots reach inside, as in
            ``trainer.learning_rate=1e-4`` or ``task.train_size=64``.

    Raises:
        ConfigurationError: unreadable file, unknown key (names the nearest valid one), or a value that breaks a rule.
    """
    values = read_mapping(path)
    for key, value in _pairs(overrides):
        _assign(values, key, value)
    known = [f.name for f in dataclasses.fields(TrainConfig)]
    for key in values:
        if key not in known:
            raise ConfigurationError(_unknown(str(key), known))
    missing = [key for key in ("task", "output") if key not in values]
    if missing:
        raise ConfigurationError(f"a configuration must set `task` and `output`, but got no {missing[0]!r}")
    for name in ("compare", "seeds"):
        if values.get(name) is None:
            values.pop(name, None)
        elif not isinstance(values[name], list):
            values[name] = [values[name]]
    values["trainer"] = values.get("trainer") or {}
    return TrainConfig(**values)


def _pairs(overrides: Sequence[str]) -> Iterable[tuple[str, Any]]:
    words = list(overrides)
    while words:
        word = words.pop(0)
        key, equals, text = word.removeprefix("--").partition("=")
        if not equals:
            if not word.startswith("--") or not words:
                raise ConfigurationError(f"an override must be key=value or --key value, but got {word!r}")
            text = words.pop(0)
        yield key, parse_value(text)


def _assign(values: dict[str, Any], key: str, value: Any) -> None:
    first, *rest = key.split(".")
    known = [f.name for f in dataclasses.fields(TrainConfig)]
    if first not in known:
        raise ConfigurationError(_unknown(key, known))
    if not rest:
        values[first] = value
        return
    if first not in ("task", "trainer"):
        raise ConfigurationError(f"only `task` and `trainer` have keys inside, but got {key!r}")
    inside = values.get(first) or {}
    if isinstance(inside, str):
        inside = {"name": inside}
    values[first] = inside = dict(inside)
    for part in rest[:-1]:
        deeper = inside.get(part) or {}
        if not isinstance(deeper, dict):
            raise ConfigurationError(f"{key!r} must reach inside a mapping, but {part!r} is {deeper!r}")
        inside[part] = inside = dict(deeper)
    inside[rest[-1]] = value


def _unknown(key: str, known: Sequence[str]) -> str:
    hint = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if "." not in key and SHORT.get(key, key) in trainer_fields("grpo"):
        hint = [f"trainer.{SHORT.get(key, key)}"]
    nearest = f"; nearest: {hint[0]!r}" if hint else f"; valid keys: {', '.join(known)}" if len(known) < 50 else ""
    return f"every key must be one that is known, but got {key!r}{nearest}"


def _one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigurationError(
            f"`{name}` must be one of {', '.join(allowed)}, but got {value!r}{nearest(value, allowed)}"
        )


_INTEGERS = ("group_size", "eval_every", "eval_samples", "eval_batch_size")


def _check_types(config: TrainConfig) -> None:
    def demand(name: str, value: Any, kind: type, word: str) -> None:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ConfigurationError(f"`{name}` must be {word}, but got {value!r}")

    for name in _INTEGERS:
        demand(name, getattr(config, name), int, "an integer")
    if config.steps is not None:
        demand("steps", config.steps, int, "an integer")
    for seed in config.seeds:
        demand("seeds", seed, int, "integers")
    for name in ("resume", "overwrite", "save_model"):
        demand(name, getattr(config, name), bool, "true or false")
    for name in ("model", "reward", "output"):
        demand(name, getattr(config, name), str, "text")
    demand("trainer", config.trainer, Mapping, "a mapping")
    if not isinstance(config.task, str):
        demand("task", config.task, Mapping, "a name or a mapping")
        if "name" not in config.task:
            raise ConfigurationError(f"`task` must be a name, or a mapping with `name`, but got {dict(config.task)}")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
