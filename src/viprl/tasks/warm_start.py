"""The arithmetic task's supervised warm start: built once in a minute or two, then read from a cache."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from viprl._files import default_cache_dir
from viprl.tasks.additions import Addition, draw_additions
from viprl.tasks.tiny_model import build_tiny_llama, build_tokenizer

FORMAT = 1  # raise when the recipe's code changes its outcome: it is part of the cache key
Log = Callable[[int, int, float], None]  # (step, steps, loss)


@dataclass(frozen=True)
class WarmStart:
    """The recipe: steps on correct sums, then steps that imitate an erring teacher.

    The default leaves success rates all over (0, 1), .49 on average. Stopping early without a teacher (800, 0) spreads
    them as well (.33 on average), but had gained nothing on held-out prompts after 50 steps of RLOO.
    """

    layers: int = 3
    hidden: int = 128
    additions: int = 8000
    clean_steps: int = 1600
    clean_learning_rate: float = 2e-3
    teacher_steps: int = 250
    teacher_learning_rate: float = 1e-3
    batch_size: int = 128
    seed: int = 0

    def fingerprint(self) -> str:
        """16 hex digits that name this recipe in the cache."""
        recipe = {"format": FORMAT, **dataclasses.asdict(self)}
        return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]


def cached_warm_start(
    cache_dir: Path | None = None, *, recipe: WarmStart | None = None, log: Log | None = None
) -> tuple[Any, Any]:
    """(model, tokenizer) of the warm start, trained on first use and read from ``cache_dir`` afterwards."""
    from transformers import AutoTokenizer, LlamaForCausalLM

    recipe = recipe or WarmStart()
    folder = (cache_dir or default_cache_dir()) / "arithmetic-warm-start" / recipe.fingerprint()
    if not (folder / "recipe.json").exists():
        model, tokenizer = train_warm_start(recipe, log=log)
        _publish(folder, model, tokenizer, recipe)
    return LlamaForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def train_warm_start(recipe: WarmStart, *, log: Log | None = None) -> tuple[Any, Any]:
    """Train the warm start; deterministic for a recipe on one machine and thread count."""
    tokenizer = build_tokenizer()
    model = build_tiny_llama(tokenizer, layers=recipe.layers, hidden=recipe.hidden, seed=recipe.seed)
    additions = draw_additions(recipe.additions, seed=recipe.seed + 1_000_003, held_out=False)
    steps = recipe.clean_steps + recipe.teacher_steps
    clean = [(f"{a}+{b}=", str(a + b)) for a, b in additions]
    done = _supervise(model, tokenizer, clean, recipe.clean_steps, recipe.clean_learning_rate, recipe, (0, steps), log)
    taught = teacher_answers([x for x in additions for _ in range(4)], seed=recipe.seed)
    rate = recipe.teacher_learning_rate
    _supervise(model, tokenizer, taught, recipe.teacher_steps, rate, recipe, (done, steps), log)
    return model, tokenizer


def teacher_answers(additions: Sequence[Addition], *, seed: int) -> list[tuple[str, str]]:
    """(prompt, answer) of a teacher who errs with a rate that grows with the last digit of the second term."""
    rng = random.Random(f"teacher/{seed}")

    def answer(a: int, b: int) -> str:
        wrong = rng.random() < 0.05 + 0.85 * (b % 10) / 9
        return str(max(0, a + b + rng.choice((1, 2, -1, 10)))) if wrong else str(a + b)

    return [(f"{a}+{b}=", answer(a, b)) for a, b in additions]


def _supervise(
    model: Any,
    tokenizer: Any,
    pairs: Sequence[tuple[str, str]],
    steps: int,
    learning_rate: float,
    recipe: WarmStart,
    span: tuple[int, int],
    log: Log | None,
) -> int:
    """Minimise the answers' cross-entropy; warm-up over 50 steps, then linear decay to a tenth of the rate."""
    import torch

    if not steps:
        return span[0]
    inputs, mask, labels = encode(tokenizer, pairs)
    generator = torch.Generator().manual_seed(recipe.seed + span[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 50) * max(0.1, 1 - step / steps)
    )
    model.train()
    for step in range(steps):
        rows = torch.randint(len(pairs), (recipe.batch_size,), generator=generator)
        attention = mask[rows]
        positions = (attention.cumsum(1) - 1).clamp(min=0)
        loss = model(input_ids=inputs[rows], attention_mask=attention, position_ids=positions, labels=labels[rows]).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if log is not None and (step + 1) % 10 == 0:
            log(span[0] + step + 1, span[1], float(loss.detach()))
    return span[0] + steps


def encode(tokenizer: Any, pairs: Sequence[tuple[str, str]]) -> tuple[Any, Any, Any]:
    """(inputs, attention mask, labels), each (pairs, longest), padded on the left; prompts carry no loss."""
    import torch

    prompts = tokenizer([prompt for prompt, _ in pairs])["input_ids"]
    answers = [[*ids, tokenizer.eos_token_id] for ids in tokenizer([answer for _, answer in pairs])["input_ids"]]
    longest = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
    inputs = torch.full((len(pairs), longest), tokenizer.pad_token_id, dtype=torch.long)
    labels, mask = torch.full_like(inputs, -100), torch.zeros_like(inputs)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        start = longest - len(prompt) - len(answer)
        inputs[row, start:] = torch.tensor(prompt + answer)
        mask[row, start:] = 1
        labels[row, start + len(prompt) :] = torch.tensor(answer)
    return inputs, mask, labels


def _publish(folder: Path, model: Any, tokenizer: Any, recipe: WarmStart) -> None:
    """Write beside the target, then rename: a cache entry is whole or not there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    model.save_pretrained(scratch)
    tokenizer.save_pretrained(scratch)
    (scratch / "recipe.json").write_text(json.dumps(dataclasses.asdict(recipe), indent=2) + "\n")
    try:
        scratch.rename(folder)
    except OSError:  # another process was faster, or a damaged entry without recipe.json is in the way
        if (folder / "recipe.json").exists():
            shutil.rmtree(scratch)
            return
        shutil.rmtree(folder)
        scratch.rename(folder)
