"""Writes files/trl: completions of a stock TRL 1.16 run, with repeats and evaluation rows, and what it really did.

    python tests/replay/make_trl_files.py

Run by hand; the files are committed, so that the reader's tests need no TRL.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "integrations"))

GENERATIONS: list[dict[str, Any]] = []


def main(folder: Path, *, with_evaluation: bool, logging_steps: int = 1) -> None:
    import tiny
    from trl import GRPOConfig, GRPOTrainer

    def reward(prompts: list[str], completions: list[str], gold: list[str], **_: Any) -> list[float]:
        scores = tiny.reward(completions, gold)
        GENERATIONS.append({"prompts": list(prompts), "rewards": scores, "train": trainer.model.training})
        return scores

    options = {
        "max_steps": 8,
        "steps_per_generation": 2,
        "per_device_train_batch_size": 12,
        "log_completions": True,
        "logging_steps": logging_steps,
    }
    if with_evaluation:
        options |= {"eval_strategy": "steps", "eval_steps": 4, "per_device_eval_batch_size": 12}
    trainer = GRPOTrainer(
        model=tiny.model(),
        reward_funcs=reward,
        args=GRPOConfig(**tiny.arguments(folder, **options)),
        train_dataset=tiny.dataset(),
        eval_dataset=tiny.dataset(6, seed=9) if with_evaluation else None,
        processing_class=tiny.tokenizer(),
    )
    trainer.train()
    (folder / "truth.json").write_text(json.dumps(GENERATIONS))
    GENERATIONS.clear()


if __name__ == "__main__":
    for name, evaluation in (("trl", False), ("trl_with_evaluation", True)):
        target = HERE / "files" / name
        shutil.rmtree(target, ignore_errors=True)
        main(target, with_evaluation=evaluation)
        for other in target.iterdir():
            if other.name not in ("completions", "truth.json"):
                shutil.rmtree(other) if other.is_dir() else other.unlink()
