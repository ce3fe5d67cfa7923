"""The arena's warm start: trained once (a few minutes on one core), read from a cache by every run.

The teacher errs by the second term's last digit, from 2 % (0) to 99.5 % (9): some prompts are nearly solved, many are
nearly hopeless, few are in between, as in real pools. The product's own warm start is milder.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from viprl.tasks import warm_start

ERRORS = (0.02, 0.05, 0.3, 0.6, 0.85, 0.95, 0.98, 0.99, 0.99, 0.995)
RECIPE = warm_start.WarmStart(teacher_steps=300)


def teacher_answers(additions: Sequence[Any], *, seed: int) -> list[tuple[str, str]]:
    """(prompt, answer) of a teacher who errs by the last digit of the second term."""
    rng = random.Random(f"teacher/{seed}")

    def answer(a: int, b: int) -> str:
        wrong = rng.random() < ERRORS[b % 10]
        return str(max(0, a + b + rng.choice((1, 2, -1, 10)))) if wrong else str(a + b)

    return [(f"{a}+{b}=", answer(a, b)) for a, b in additions]


def cached(folder: Path) -> tuple[Any, Any]:
    """(model, tokenizer), trained on first use."""
    from transformers import AutoTokenizer, LlamaForCausalLM

    target = folder / "arena-1"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with mock.patch.object(warm_start, "teacher_answers", teacher_answers):
            model, tokenizer = warm_start.train_warm_start(RECIPE, log=lambda *row: print("warm", *row, flush=True))
        scratch = Path(tempfile.mkdtemp(dir=folder))
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        os.rename(scratch, target)
    return LlamaForCausalLM.from_pretrained(target), AutoTokenizer.from_pretrained(target)


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    cached(Path(os.environ.get("VIPRL_CACHE", "cache")))
