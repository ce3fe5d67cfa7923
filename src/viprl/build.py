"""The one way from names and prompts to an allocator: what every trainer, command and document uses."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np

from viprl import registry
from viprl.allocator import RolloutAllocator
from viprl.errors import ConfigurationError
from viprl.prompts.prompt_set import PromptSet
from viprl.selection import SelectionPolicy
from viprl.settings import AllocationSettings
from viprl.stream import StreamAllocator
from viprl.variance import OutcomeMoments, VarianceModel

logger = logging.getLogger("viprl")

OWN_LOOP = "needs gradient norms (observe's squared_norms), which must be asked for by variance='learned'"
DEFAULT_BOUNDS = (3, 32)


def build_allocator(
    prompts: PromptSet | None = None,
    settings: AllocationSettings | None = None,
    *,
    predictor: Any = None,
    policy: Any = None,
    not_learnable: str | None = OWN_LOOP,
) -> RolloutAllocator:
    """The allocator that the settings describe.

    Args:
        prompts: the known prompts; None where they become known as they come.
        settings: ``AllocationSettings()`` by default.
        predictor, policy: objects instead of the settings' names.
        not_learnable: why the trainer gives no gradient norms, for ``variance="auto"``; None where it gives them.

    Raises:
        ConfigurationError: settings and prompts do not fit.

    >>> prompts = PromptSet(["a", "b"], texts=["1+1=", "12345*6789="])
    >>> build_allocator(prompts).allocate(["a", "b"], budget=16).group_sizes.sum()
    np.int64(16)
    """
    if prompts is not None and not isinstance(prompts, PromptSet):
        raise TypeError(
            "build_allocator(prompts, settings) takes a viprl.PromptSet, as in PromptSet(ids, texts=texts), or None, "
            f"but got {type(prompts).__name__}"
        )
    settings = AllocationSettings() if settings is None else settings
    if settings.success_function is not None and not_learnable is OWN_LOOP:
        raise ConfigurationError(
            "in a loop of your own `success_reward` must be a number (rewards from it on are successes), or the "
            f"successes go to observe(plan, rewards, successes=...), but got {settings.success_reward!r}"
        )
    if policy is not None and policy.name in registry.names("policy"):
        settings = settings.replace(policy=policy.name)
    if predictor is not None and predictor.reward_kind == "real":
        not_learnable = "tells success from failure, but the predictor is of real rewards"
    low, high = (
        default if bound is None else bound
        for bound, default in zip((settings.min_group_size, settings.max_group_size), DEFAULT_BOUNDS, strict=True)
    )
    return RolloutAllocator(
        build_predictor(prompts, settings) if predictor is None else predictor,
        build_variance(settings, not_learnable=not_learnable),
        min_group_size=low,
        max_group_size=max(low, high),
        policy=build_policy(settings.policy) if policy is None else policy,
        guard=settings.guard,
        reward_values=settings.reward_values,
        success_at=settings.success_at,
        selection=build_selection(settings),
        candidates=settings.candidates,
    )


def build_stream(
    prompts: PromptSet | None = None,
    settings: AllocationSettings | None = None,
    *,
    mean_group_size: float = 8,
    predictor: Any = None,
) -> StreamAllocator:
    """The stream that the settings describe, for trainers that take prompts one by one.

    Args:
        prompts, settings, predictor: as for ``build_allocator``.
        mean_group_size: rollouts of a prompt on average, where the settings would give a step's budget.

    Raises:
        ConfigurationError: settings and prompts do not fit, or settings that have no meaning without a batch.

    >>> stream = build_stream(PromptSet(["a", "b"], texts=["1+1=", "12345*6789="]), mean_group_size=8)
    >>> stream.offer("a")
    Offer(group_size=8, ticket=0)
    """
    settings = AllocationSettings() if settings is None else settings
    if settings.budget is not None:
        raise ConfigurationError(f"a stream has no step to budget; give mean_group_size, not budget={settings.budget}")
    if settings.policy not in ("vip", "uniform"):
        raise ConfigurationError(f"a stream's policy must be 'vip' or 'uniform', but got {settings.policy!r}")
    low, high = settings.min_group_size, settings.max_group_size
    allocator = build_allocator(
        prompts,
        settings.replace(max_group_size=None),
        predictor=predictor,
        not_learnable="needs gradient norms, which a stream is not told",
    )
    if allocator.model.learns:
        raise ConfigurationError("variance='learned' needs gradient norms, which a stream is not told; use 'formula'")
    return StreamAllocator(
        allocator.predictor,
        allocator.model,
        mean_group_size=mean_group_size,
        min_group_size=min(DEFAULT_BOUNDS[0], math.floor(mean_group_size)) if low is None else low,
        max_group_size=high,
        policy=allocator.policy,
        guard=settings.guard,
        reward_values=settings.reward_values,
        success_at=settings.success_at,
        candidates=settings.candidates,
        selection=build_selection(settings) if settings.candidates > 1 else None,
    )


def build_policy(name: str) -> Any:
    """The policy of that name."""
    return registry.find("policy", name).load()()


def build_selection(settings: AllocationSettings) -> SelectionPolicy:
    """The settings' way to choose among candidates."""
    made: SelectionPolicy = registry.find("selection", settings.selection).load()(floor=settings.exploration)
    if made.rests:
        made.max_rest = settings.max_rest
    return made


def build_variance(settings: AllocationSettings, *, not_learnable: str | None = OWN_LOOP) -> VarianceModel:
    """The variance model of the settings' estimator; ``variance="auto"`` is decided here and said once in the log."""
    estimator = settings.estimator or "rloo"
    learned = settings.variance == "learned"
    if settings.variance == "auto":
        reason = settings.not_learnable() or not_learnable
        learned = reason is None
        logger.info("variance='auto' is %s", "'learned'" if learned else f"'formula': a learned one {reason}")
    if learned:
        return OutcomeMoments(estimator=estimator)
    model: VarianceModel = registry.find("estimator", estimator).load()()
    return model


def build_predictor(prompts: PromptSet | None, settings: AllocationSettings) -> Any:
    """The predictor of the settings over the prompts; embeddings are computed once and cached.

    Raises:
        ConfigurationError: prompts that become known as they come, or without texts, and a predictor that needs more.
    """
    entry = registry.find("predictor", settings.predictor)
    predictor = entry.load()
    if prompts is None:
        wanted = [name for name in ("side_information", "initial_rates") if getattr(settings, name)]
        wanted += ["embedding_model"] if settings.embedding_model != "none" else []
        if not entry.new_prompts or wanted:
            able = [e.name for e in registry.entries("predictor") if e.new_prompts]
            raise ConfigurationError(
                "prompts that become known as they come (a stream) need a predictor that takes new prompts, without "
                f"{', '.join(wanted) or 'embeddings'}, but got predictor={settings.predictor!r}; use one of "
                f"{', '.join(able)}, or give the trainer an object"
            )
        return predictor()
    ids = list(prompts.ids)
    given: dict[str, Any] = {}
    texts = prompts.read_texts() if "texts" in entry.reads or settings.embedding_model != "none" else None
    if "texts" in entry.reads and texts is not None:
        given["texts"] = texts
    if "embeddings" in entry.reads:
        given["embeddings"] = _embeddings(prompts, texts, settings)
    if "side_information" in entry.reads and prompts.side_information:
        given["side_information"] = dict(prompts.side_information)
    made = predictor(prompt_ids=ids, **given)
    if prompts.initial_rates is not None:
        _start_from_rates(made, prompts, settings)
    return made


def _embeddings(prompts: PromptSet, texts: list[str] | None, settings: AllocationSettings) -> Any:
    """(N, D), or None without a model."""
    if prompts.embeddings is not None or settings.embedding_model == "none":
        return prompts.embeddings
    if texts is None:
        raise ConfigurationError(
            f"embedding_model={settings.embedding_model!r} needs the prompts' texts, but the prompts have none"
        )
    from viprl.embeddings import embed

    return embed(texts, model=settings.embedding_model, cache_dir=settings.embedding_cache)


def _start_from_rates(predictor: Any, prompts: PromptSet, settings: AllocationSettings) -> None:
    """Teach the rates that were measured before the run, as so many discounted rollouts."""
    rates = np.asarray(prompts.initial_rates, dtype=np.float64)
    behind = settings.initial_rollouts if prompts.initial_rollouts is None else prompts.initial_rollouts
    if behind is None:
        raise ConfigurationError(
            "initial rates need `initial_rollouts`, the rollouts behind each of them, but got initial_rollouts=None"
        )
    known = np.flatnonzero(~np.isnan(rates))
    n = np.broadcast_to(np.asarray(behind, dtype=np.float64), rates.shape)[known] * settings.initial_discount
    predictor.observe([prompts.ids[int(row)] for row in known], rates[known] * n, n)
