"""Steps of the verl trainer without a cluster: a batch as it is submitted, and as it comes back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transfer_queue import KVBatchMeta
from verl.utils import tensordict_utils as tu

from viprl.integrations.verl import trainer
from viprl.integrations.verl.setup import ID_COLUMN


def prompt_rows(count: int) -> list[dict[str, Any]]:
    return [
        {"data_source": "t", "prompt": [{"role": "user", "content": f"q{i}"}], "extra_info": {"index": i}}
        for i in range(count)
    ]


def submit(built: Any, prompts: list[int], uids: list[str]) -> list[int]:
    """Group sizes that a submitted batch carries."""
    batch = tu.get_tensordict(
        {
            "dummy": torch.zeros(len(prompts), 1),
            "uid": np.array(uids, dtype=object),
            ID_COLUMN: np.array([f"t/{i}" for i in prompts], dtype=object),
        }
    )
    built._submit_batch_to_rollout(batch)
    return [int(n) for n in batch["__rollout_n__"]]


def log_probs_of(key: str) -> tuple[list[float], list[int]]:
    """Log-probabilities and response mask of a trajectory: three to six tokens, some of them a tool's."""
    rng = np.random.default_rng(list(key.encode()))
    length = int(rng.integers(3, 7))
    mask = [1, *(rng.random(length - 1) < 0.7).astype(int).tolist()]
    return np.log(rng.uniform(0.01, 1.0, length)).tolist(), mask


def norm_by_hand(key: str) -> float:
    """The definition, token by token, for a loss that averages over a rollout's tokens."""
    own = [-value for value, mask in zip(*log_probs_of(key), strict=True) if mask]
    return sum(own) / len(own) ** 2


def answer(
    built: Any, rows: list[tuple[str, int, float]], monkeypatch: pytest.MonkeyPatch, padding: int = 0
) -> dict[str, float]:
    """Metrics after a batch of (uid, session, reward) rows, in the given order, with padding rows among them."""
    rows = [*rows, *((f"pad{'a' * 32}", i, 99.0) for i in range(padding))]
    rewards = {f"{uid}_{session}_0": reward for uid, session, reward in rows}
    batch = KVBatchMeta(
        keys=list(rewards), tags=[{"response_len": 2} for _ in rows], partition_id="train", extra_info={}
    )
    batch.reorder(built.ledger.order(batch.keys))

    def get(keys: list[str], select_fields: list[str], **unused: Any) -> dict[str, torch.Tensor]:
        columns = {
            "rm_scores": [torch.tensor([0.0, rewards[key]]) for key in keys],
            "old_log_probs": [torch.tensor(log_probs_of(key)[0]) for key in keys],
            "response_mask": [torch.tensor(log_probs_of(key)[1]) for key in keys],
        }
        return {name: torch.nested.as_nested_tensor(columns[name], layout=torch.jagged) for name in select_fields}

    monkeypatch.setattr(trainer.tq, "kv_batch_get", get)
    metrics: dict[str, float] = {}
    built._compute_advantage(batch, metrics)
    return metrics
