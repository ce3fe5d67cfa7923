"""One recorded training run, for a process of its own (a fork, or ``torchrun trl_worker.py FOLDER OPTIONS.json``).

Appends one JSON line per generation batch to ``FOLDER/steps-<rank>.jsonl`` as it happens (prompt ids, group sizes,
decoded completions, advantages) and writes the final parameters to ``FOLDER/final-<rank>.pt``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from trl_runs import Gradients, Recorder, make, parameters


def run(folder: Path, options: dict, resume: bool = False) -> None:
    options = dict(options)
    kind = options.pop("kind")
    if sleep := options.pop("sleep", 0.0):
        options["reward_funcs"] = _slow_reward(sleep)
    folder.mkdir(parents=True, exist_ok=True)
    gradients = Gradients()
    trainer = make(kind, folder, callbacks=[gradients], **options)
    record = Recorder(trainer)
    rank = trainer.accelerator.process_index
    generate = trainer._generate_and_score_completions

    def write(inputs):
        output = generate(inputs)
        step = trainer.last_step
        if len(record.batches) == 1:
            torch.save({k: v for k, v in output.items() if torch.is_tensor(v)}, folder / f"rollouts-{rank}.pt")
        line = {
            "global_step": trainer.state.global_step,
            "ids": step.prompt_ids,
            "sizes": step.group_sizes.tolist(),
            "rewards": step.rewards.tolist(),
            "advantages": step.advantages.tolist(),
            "rows": record.batches[-1],
        }
        with open(folder / f"steps-{rank}.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        return output

    trainer._generate_and_score_completions = write
    trainer.train(resume_from_checkpoint=True if resume else None)
    torch.save(gradients.taken[0], folder / f"gradient-{rank}.pt")
    torch.save(parameters(trainer), folder / f"final-{rank}.pt")


def _slow_reward(seconds: float):
    import time

    import tiny

    def reward(**kwargs):
        time.sleep(seconds)
        return tiny.reward(**kwargs)

    return reward


if __name__ == "__main__":
    run(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), "resume" in sys.argv[3:])
