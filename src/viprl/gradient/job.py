"""``viprl gradient-variance CONFIG.yaml``: does adaptive allocation help this model on this task? Measured."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from viprl import registry
from viprl._yaml import read_mapping
from viprl.allocation import Uniform
from viprl.errors import ConfigurationError, nearest, require
from viprl.gradient.comparison import PolicyResult, compare, oracle_sizes, pool_constants
from viprl.gradient.learned import learn_from_pools, posterior
from viprl.gradient.pool import AGGREGATIONS, PromptPool, load_pools, save_pools
from viprl.reports.progress import make_progress
from viprl.variance import RLOO, DrGRPO

LEARNED, ORACLE, UNIFORM = "learned", "oracle", "uniform"


@dataclass(frozen=True)
class GradientConfig:
    """What to measure.

    Attributes:
        task, model: as in ``viprl train``.
        prompts: how many of the task's training prompts, from the first.
        history: past rollouts of each prompt, from which success rates and learned variances come.
        rollouts: fresh rollouts of each prompt, the truth.
        max_new_tokens: of a rollout; the task's own limit by default.
        group_size, min_group_size, max_group_size: mean group size of the batch, and bounds (3 and 4 x mean).
        policies: names of the registry, ``learned`` and ``oracle``; uniform is always the reference.
        estimator: ``rloo`` or ``dr_grpo``. aggregation: gradient of the ``sum`` or the ``mean`` over tokens.
        sketch_size: numbers kept of a gradient; null keeps all of it.
        layers: parts of module names to restrict the gradient to; null takes every layer.
        batch_rows: rollouts in one backward pass. seed: of sampling and sketch.
    """

    task: str | Mapping[str, Any]
    model: str = "tiny"
    prompts: int = 64
    history: int = 16
    rollouts: int = 32
    max_new_tokens: int | None = None
    group_size: int = 8
    min_group_size: int = 3
    max_group_size: int | None = None
    policies: Sequence[str] = ("vip", LEARNED, ORACLE)
    estimator: str = "rloo"
    aggregation: str = "sum"
    sketch_size: int | None = 32_768
    layers: Sequence[str] | None = None
    batch_rows: int = 16
    seed: int = 0
    cache: str | None = None

    def __post_init__(self) -> None:
        known = [*registry.names("policy"), LEARNED, ORACLE]
        for name in self.policies:
            if name not in known:
                raise ConfigurationError(f"`policies` must be among {known}, but got {name!r}")
        if self.estimator not in ("rloo", "dr_grpo"):
            raise ConfigurationError(f"`estimator` must be rloo or dr_grpo, but got {self.estimator!r}")
        if self.aggregation not in AGGREGATIONS:
            raise ConfigurationError(f"`aggregation` must be one of {AGGREGATIONS}, but got {self.aggregation!r}")
        least = {"prompts": 2, "history": 1, "rollouts": 5, "group_size": 2, "min_group_size": 2, "batch_rows": 1}
        for name, low in least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise ConfigurationError(f"`{name}` must be an integer of at least {low}, but got {value!r}")
        if not self.min_group_size <= self.group_size <= self.largest:
            raise ConfigurationError(
                "min_group_size <= group_size <= max_group_size must hold, but got "
                f"({self.min_group_size}, {self.group_size}, {self.largest})"
            )

    @property
    def largest(self) -> int:
        return 4 * self.group_size if self.max_group_size is None else self.max_group_size


def load_gradient_config(path: str | Path, *, measure: bool = True) -> GradientConfig:
    """Read a YAML file.

    Args:
        measure: gradients are to be measured too.

    Raises:
        ConfigurationError: unreadable, an unknown key (names the nearest), or a value that breaks a rule.
        MissingDependencyError: what reading it (and measuring) needs is not installed.
    """
    needed = {"torch": "torch", "transformers": "transformers", "datasets": "datasets"} if measure else {}
    require("measuring gradients", yaml="pyyaml", **needed)
    values = read_mapping(path)
    if "task" not in values:
        raise ConfigurationError(f"a configuration must set `task`, but {path} sets {', '.join(map(str, values))}")
    known = [f.name for f in dataclasses.fields(GradientConfig)]
    for key in values:
        if key not in known:
            raise ConfigurationError(f"settings must be among {', '.join(known)}, but got {key!r}{nearest(key, known)}")
    return GradientConfig(**values)


def pools_of(config: GradientConfig, path: str | Path | None = None) -> list[PromptPool]:
    """Pools from the file, or measured and kept there."""
    if path is not None and Path(path).exists():
        return load_pools(path)
    from viprl.tasks.models import load_model

    task = make_config_task(config)
    model, tokenizer = load_model(config.model, task, cache_dir=None if config.cache is None else Path(config.cache))
    with make_progress(stream=sys.stderr) as bar:
        bar.start("measuring prompts", config.prompts)
        pools = measure_pools(config, task, model, tokenizer, progress=lambda done, _: bar.update(done))
    if path is not None:
        save_pools(path, pools)
    return pools


def make_config_task(config: GradientConfig) -> Any:
    """The task that the configuration names."""
    from viprl.tasks import make_task

    if isinstance(config.task, str):
        return make_task(config.task)
    settings = {k: v for k, v in config.task.items() if k != "name"}
    return make_task(str(config.task.get("name")), **settings)


def measure_pools(
    config: GradientConfig,
    task: Any,
    model: Any,
    tokenizer: Any,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> list[PromptPool]:
    """Draw history + rollouts of every prompt of the task (``viprl.tasks.Task``) and take their gradients."""
    import torch

    from viprl.gradient.capture import only_named
    from viprl.gradient.measure import measure

    data = task.train_dataset()
    if len(data) < config.prompts:
        raise ConfigurationError(f"the task must have {config.prompts} training prompts, but it has {len(data)}")
    data = data.select(range(config.prompts))

    def reward(q: int, texts: list[str]) -> list[float]:
        row = data[q]
        columns = {k: [v] * len(texts) for k, v in row.items() if k != "prompt"}
        completions: list[Any] = [[{"role": "assistant", "content": t}] for t in texts] if task.chat else list(texts)
        values = task.reward([row["prompt"]] * len(texts), completions, **columns)
        return [float((value or 0.0) >= task.success_threshold) for value in values]

    torch.manual_seed(config.seed)
    return list(
        measure(
            model,
            tokenizer,
            list(data["prompt"]),
            [str(i) for i in data["prompt_id"]],
            reward,
            rollouts=config.history + config.rollouts,
            max_new_tokens=config.max_new_tokens or task.max_completion_length,
            progress=progress,
            sketch_size=config.sketch_size,
            layers=None if config.layers is None else only_named(config.layers),
            batch_rows=config.batch_rows,
            seed=config.seed,
        )
    )


def compare_policies(pools: Sequence[PromptPool], config: GradientConfig) -> list[PolicyResult]:
    """Predicted and measured ratios: predictions from each pool's first ``history`` rollouts, truth from the rest."""
    past = [p.part(np.arange(config.history)) for p in pools]
    fresh = [p.part(np.arange(config.history, len(p.rewards))) for p in pools]
    v1, v2 = pool_constants(fresh, config.aggregation)
    if not v1.sum() > 0:
        raise ConfigurationError("some prompts must have both outcomes, but all rollouts of each had the same reward")
    prediction = posterior(past)
    budget = config.group_size * len(pools)
    bounds = {"min_group_size": config.min_group_size, "max_group_size": config.largest}
    formula = RLOO() if config.estimator == "rloo" else DrGRPO()
    learned = learn_from_pools(past, aggregation=config.aggregation, estimator=config.estimator)
    bound = learned.bind([p.prompt_id for p in past])
    uniform = Uniform().allocate(prediction, model=formula, budget=budget, **bounds)
    sizes, predicted = {UNIFORM: uniform}, {UNIFORM: 1.0}
    for name in dict.fromkeys(config.policies):
        if name == ORACLE:
            sizes[name] = oracle_sizes(v1, v2, budget, config.min_group_size, config.largest, config.estimator)
            continue
        model = bound if name == LEARNED else formula
        policy = registry.find("policy", "vip" if name == LEARNED else name).load()()
        sizes[name] = policy.allocate(prediction, model=model, budget=budget, **bounds)
        value, equal = (model.variance(prediction, n).sum() for n in (sizes[name], uniform))
        predicted[name] = float(value / equal)
    oracle = ORACLE if ORACLE in sizes else None
    return compare(sizes, uniform, v1, v2, estimator=config.estimator, predicted=predicted, oracle=oracle)


def table(results: Sequence[PolicyResult]) -> str:
    """The results as lines of text."""
    lines = [f"{'policy':<18} {'predicted':>9} {'measured':>9}   95 % interval    share of the possible gain"]
    for r in results:
        promise = "-" if np.isnan(r.predicted) else f"{r.predicted:.3f}"
        share = "-" if np.isnan(r.share) else f"{r.share:+.2f} +- {1.96 * r.share_error:.2f}"
        lines.append(f"{r.name:<18} {promise:>9} {r.measured:>9.3f}   {r.low:.3f} to {r.high:.3f}   {share}")
    return "\n".join(lines)
