"""A verl configuration as a nested dict (the parts that the start-up checks read), and a trainer without a cluster."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BASE: dict[str, Any] = {
    "algorithm": {
        "adv_estimator": "viprl_rloo",
        "norm_adv_by_std_in_grpo": True,
        "filter_groups": {"enable": False},
        "rollout_correction": {"rollout_rs": None},
        "use_kl_in_reward": False,
    },
    "data": {"train_batch_size": 8, "gen_batch_size": None, "prompt_key": "prompt"},
    "actor_rollout_ref": {
        "actor": {
            "strategy": "fsdp2",
            "ppo_mini_batch_size": 8,
            "ppo_micro_batch_size_per_gpu": 8,
            "use_dynamic_bsz": False,
            "ulysses_sequence_parallel_size": 1,
            "loss_agg_mode": "seq-mean-token-mean",
            "policy_loss": {"loss_mode": "vanilla"},
            "use_kl_loss": False,
            "entropy_coeff": 0,
            "fsdp_config": {"ulysses_sequence_parallel_size": 1},
        },
        "rollout": {"n": 4, "agent": {"agent_loop_manager_class": None}},
    },
    "trainer": {
        "n_gpus_per_node": 1,
        "nnodes": 1,
        "v1": {"sampler": {"sync_refill_failed_groups": False, "custom_sampler": {"path": None}}},
    },
    "skip": {"rollout_tq": {"enable": False}},
}


@pytest.fixture
def make_config() -> Callable[..., dict[str, Any]]:
    """Builds the configuration with dotted changes, e.g. ``{"viprl.budget": 40}``."""

    def make(changes: dict[str, Any] | None = None) -> dict[str, Any]:
        config = copy.deepcopy(BASE)
        for path, value in (changes or {}).items():
            *parents, last = path.split(".")
            node = config
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = value
        return config

    return make


@pytest.fixture
def make_trainer(
    make_config: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """A trainer over 12 prompts (or as many as are asked for) whose parent's methods do nothing."""
    import numpy as np
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1 import PPOTrainerSync
    from verl_steps import prompt_rows

    from viprl.history import HistoryWriter
    from viprl.integrations.verl.checks import check_config
    from viprl.integrations.verl.ledger import PlanLedger
    from viprl.integrations.verl.setup import allocator_of_run, read_prompts
    from viprl.integrations.verl.trainer import AdaptiveTrainerSync

    for name, result in (("_submit_batch_to_rollout", 0), ("_compute_advantage", None), ("on_step_end", None)):
        monkeypatch.setattr(PPOTrainerSync, name, lambda self, *a, _r=result, **k: a[0] if a else _r)

    def make(changes: dict[str, Any] | None = None, prompts: int = 12) -> Any:
        config = make_config(
            {
                "viprl.guard": False,
                "trainer.default_local_dir": str(tmp_path / "checkpoints"),
                "trainer.resume_mode": "auto",
                **(changes or {}),
            }
        )
        built = AdaptiveTrainerSync.__new__(AdaptiveTrainerSync)
        built.config = OmegaConf.create(config)
        built.run = check_config(config)
        built.ledger, built.selected = PlanLedger(), None
        built._offer(prompts)
        named = read_prompts(prompt_rows(prompts), prompt_column="prompt", settings=built.run.settings)
        built.allocator = allocator_of_run(named.prompts, built.run)
        built.history = HistoryWriter(tmp_path / "history", format="jsonl")
        built.timing_raw, built.global_steps, built.total_training_steps = {}, 1, 10
        built._rewards = np.zeros(0)
        return built

    return make
