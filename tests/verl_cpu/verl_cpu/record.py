"""Rows of every training batch as they reach the actor's update, one JSON line each; for hand computations.

``VERL_CPU_RECORD`` names the file. Works for any trainer: the method that is wrapped is verl's own.
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any

from verl.trainer.ppo.v1.trainer_base import PPOTrainer

FIELDS = ["prompts", "responses", "response_mask", "rm_scores", "advantages", "old_log_probs", "rollout_log_probs"]


def _write(trainer: Any, batch: Any, path: str) -> None:
    import transfer_queue as tq

    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=FIELDS)
    columns = {name: [row.tolist() for row in data[name].unbind()] for name in FIELDS}
    with open(path, "a", encoding="utf-8") as file:
        for i, (key, tag) in enumerate(zip(batch.keys, batch.tags, strict=True)):
            row = {name: column[i] for name, column in columns.items()}
            file.write(
                json.dumps(
                    {
                        "step": trainer.global_steps,
                        "pid": os.getpid(),
                        "key": key,
                        "padding": bool(tag.get("is_padding", False)),
                        "prompt": trainer.tokenizer.decode(row.pop("prompts"), skip_special_tokens=True),
                        "response": trainer.tokenizer.decode(row.pop("responses"), skip_special_tokens=True),
                        "score": sum(row.pop("rm_scores")),
                        **row,
                    }
                )
                + "\n"
            )


if os.environ.get("VERL_CPU_RECORD"):
    _update_actor = PPOTrainer._update_actor

    @functools.wraps(_update_actor)
    def _recorded(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        _write(self, batch, os.environ["VERL_CPU_RECORD"])
        return _update_actor(self, batch, *args, **kwargs)

    PPOTrainer._update_actor = _recorded
