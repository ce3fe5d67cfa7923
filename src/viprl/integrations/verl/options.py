"""The ``+viprl.*`` overrides of a verl run, and how values are read from verl's configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from viprl.errors import ConfigurationError

VARIANCES = ("formula", "learned")


@dataclass(frozen=True)
class AdaptiveOptions:
    """What a run may set below ``viprl`` (as ``+viprl.budget=4096`` on verl's command line).

    Attributes:
        budget: rollouts of a step, C; default ``data.train_batch_size * rollout.n``.
        min_group_size, max_group_size: bounds L, U of a group; default min(3, G) and 4 G at mean group size G.
        predictor: a name of ``viprl.integrations.predictors``; "calibrated" by default.
        variance: "formula", the paper's from success probabilities alone, or "learned", from the log-probabilities of
            past rollouts (``learned.py``).
        policy: how to allocate: "vip", "uniform", ... (``viprl.allocation.policies``).
        guard: fall back to uniform groups while the realised variance is above uniform's.
        prompt_id_column: the column that names a prompt; by default ``extra_info.prompt_id``, else (data_source,
            index) where unique, else the hash of the prompt.
        side_information: names of numeric columns (top level or in ``extra_info``) for the predictor, for instance the
            pass rate of another model.
        embedding_model: prompt embeddings beside the text statistics that the predictor computes itself: "none",
            "packaged", "hashed-ngrams", or the path or hub id of a sentence-transformers model.
        embedding_cache: folder that keeps embeddings between runs; default
            ``<trainer.default_local_dir>/viprl_embeddings``.
        reward_values: (failure, success); by default {0, 1} and {-1, 1} are told apart by themselves.
        max_missing: the run stops when a larger share of a step's rollouts came back without a reward.
        grade_own_tokens: reward functions see the policy's own tokens alone (response mask 1), not what tools returned
            between them; also in validation.
        history_dir: folder of the per-prompt history; default ``<trainer.default_local_dir>/viprl_history``.
        fresh_state: accept a checkpoint without allocator state (one of stock verl) and start the predictor cold.
    """

    budget: int | None = None
    min_group_size: int | None = None
    max_group_size: int | None = None
    predictor: str = "calibrated"
    variance: str = "formula"
    policy: str = "vip"
    guard: bool = True
    prompt_id_column: str | None = None
    side_information: tuple[str, ...] = ()
    embedding_model: str = "none"
    embedding_cache: str | None = None
    reward_values: tuple[float, float] | None = None
    max_missing: float = 0.5
    grade_own_tokens: bool = False
    history_dir: str | None = None
    fresh_state: bool = False

    def __post_init__(self) -> None:
        for name in ("budget", "min_group_size", "max_group_size"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or int(value) != value or value < 1):
                raise ConfigurationError(f"`viprl.{name}` must be a positive integer, but got {value!r}")
        if self.variance not in VARIANCES:
            raise ConfigurationError(f"`viprl.variance` must be one of {VARIANCES}, but got {self.variance!r}")
        if not 0 <= self.max_missing <= 1:
            raise ConfigurationError(f"0 <= viprl.max_missing <= 1 must hold, but got {self.max_missing}")
        if self.reward_values is not None and len(self.reward_values) != 2:
            raise ConfigurationError(f"`viprl.reward_values` must be [failure, success], but got {self.reward_values}")

    @classmethod
    def from_config(cls, config: Any) -> AdaptiveOptions:
        """Options of a verl configuration (a DictConfig or nested mapping); absent keys keep their defaults.

        Raises:
            ConfigurationError: an unknown key below ``viprl``, or a value that breaks a rule.
        """
        given = select(config, "viprl") or {}
        values = {str(key): _plain(given[key]) for key in given}
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigurationError(f"keys below `viprl` must be among {sorted(known)}, but got {unknown}")
        for name in ("side_information", "reward_values"):
            value = values.get(name)
            if value is not None:
                values[name] = (value,) if isinstance(value, str) else tuple(value)
        folder = str(select(config, "trainer.default_local_dir", "."))
        places = {"history_dir": "viprl_history", "embedding_cache": "viprl_embeddings"}
        for name, place in places.items():
            if values.get(name) is None:
                values[name] = os.path.join(folder, place)
        return cls(**values)


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
