"""The ``+viprl.*`` overrides of a verl run, and how values are read from verl's configuration."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from viprl.errors import ConfigurationError
from viprl.settings import AllocationSettings, settings_fields

FOLLOWED = {"estimator": "algorithm.adv_estimator", "prompt_weighting": "algorithm.adv_estimator (..._rollout)"}


@dataclass(frozen=True)
class AdaptiveOptions:
    """What a run may set below ``viprl`` (as ``+viprl.budget=4096`` on verl's command line).

    Attributes:
        settings: every field of ``viprl.AllocationSettings`` but estimator and prompt_weighting, which follow
            ``algorithm.adv_estimator``. Columns may lie at the top level of the data or in ``extra_info``;
            ``success_reward`` may name a key of the dict that the reward function returns; ``embedding_cache`` is by
            default ``<trainer.default_local_dir>/viprl_embeddings``.
        max_missing: the run stops when a larger share of a step's rollouts came back without a reward.
        grade_own_tokens: reward functions see the policy's own tokens alone (response mask 1), not what tools returned
            between them; also in validation.
        history_dir: folder of the per-prompt history; default ``<trainer.default_local_dir>/viprl_history``.
        fresh_state: accept a checkpoint without allocator state (one of stock verl) and start the predictor cold.
    """

    settings: AllocationSettings = field(default_factory=AllocationSettings)
    max_missing: float = 0.5
    grade_own_tokens: bool = False
    history_dir: str | None = None
    fresh_state: bool = False

    def __post_init__(self) -> None:
        number = isinstance(self.max_missing, int | float) and not isinstance(self.max_missing, bool)
        if not number or not 0 <= self.max_missing <= 1:
            raise ConfigurationError(f"`max_missing` must be a number in [0, 1], but got {self.max_missing!r}")
        for name in ("grade_own_tokens", "fresh_state"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(f"`{name}` must be true or false, but got {getattr(self, name)!r}")

    @classmethod
    def from_config(cls, config: Any, estimator: str | None = None) -> AdaptiveOptions:
        """Options of a verl configuration (a DictConfig or nested mapping); absent keys keep their defaults.

        Args:
            config: the configuration.
            estimator: what ``algorithm.adv_estimator`` stands for.

        Raises:
            ConfigurationError: an unknown key below ``viprl``, or a value that breaks a rule.
        """
        given = select(config, "viprl") or {}
        values = {str(key): _plain(given[key]) for key in given}
        ours = [item.name for item in settings_fields(without=tuple(FOLLOWED))]
        known = [*ours, *(item.name for item in fields(cls) if item.name != "settings")]
        for key in values:
            if key in FOLLOWED:
                raise ConfigurationError(f"viprl.{key} follows {FOLLOWED[key]}, so it must not be given, but it is")
            if key not in known:
                close = difflib.get_close_matches(key, known, n=1)
                nearest = f"; nearest: {close[0]!r}" if close else f"; known: {', '.join(known)}"
                raise ConfigurationError(f"every key below `viprl` must be one that is known, but got {key!r}{nearest}")
        folder = str(select(config, "trainer.default_local_dir", "."))
        for name, place in (("history_dir", "viprl_history"), ("embedding_cache", "viprl_embeddings")):
            if values.get(name) is None:
                values[name] = os.path.join(folder, place)
        settings = AllocationSettings(estimator=estimator, **{key: values.pop(key) for key in ours if key in values})
        return cls(settings, **values)


def select(config: Any, path: str, default: Any = None) -> Any:
    """The value at a dotted path, ``default`` where a part of the path is absent or null."""
    node = config
    for part in path.split("."):
        if node is None or not hasattr(node, "get"):
            return default
        node = node.get(part)
    return default if node is None else node


def _plain(value: Any) -> Any:
    """Lists of the configuration library as Python lists; anything nested deeper is not an option of ours."""
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
        return value
    return list(value)
