"""Warm starts of the arithmetic model. ``python stages.py`` builds and caches them.

early: 800 clean steps, errs everywhere; noisy: the task's own warm start, whose success rates are spread by an erring
teacher. The third stage is the second after reinforcement learning (arithmetic_history.py).
"""

from __future__ import annotations

import torch

from viprl.tasks.warm_start import WarmStart, cached_warm_start

# one teacher step at a rate of practically zero: the recipe needs at least one
CLEAN = {"teacher_steps": 1, "teacher_learning_rate": 1e-12}
STAGES = {
    "early": WarmStart(clean_steps=800, **CLEAN),
    "noisy": WarmStart(clean_steps=1600, teacher_steps=250),
}


def load(stage: str):
    """(model, tokenizer) of a stage."""
    return cached_warm_start(recipe=STAGES[stage])


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in STAGES:
        load(name)
        print(name, flush=True)
