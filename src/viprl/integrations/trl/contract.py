"""What the adaptive trainers need of TRL and transformers, checked before a run starts.

The trainers override and read private parts of their parents. Each is listed here with what must be true of it; a
release that moves one is refused at construction, in words, instead of training something else.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from transformers import Trainer

from viprl.errors import ConfigurationError

TESTED_TRL = "trl >=1.16.0, <1.17"

# method -> (its parameters, text that its source must contain, in this order)
_METHODS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "train": (("resume_from_checkpoint",), ("get_last_checkpoint(args.output_dir)",)),
    "_init_training_state": (("resume_from_checkpoint",), ("epochs_trained", "steps_trained_in_current_epoch")),
    "_save_rng_state": (("output_dir",), ()),
    "_set_signature_columns_if_needed": ((), ("self._signature_columns = [",)),
    "get_train_dataloader": (
        (),
        (
            "mini_repeat_count=self.num_generations",
            "batch_size=self.args.generation_batch_size // self.num_generations",
        ),
    ),
    "_get_train_sampler": (("dataset",), ("RepeatSampler(", "mini_repeat_count=self.num_generations")),
    "_prepare_inputs": (
        ("generation_batch",),
        (
            "self.args.steps_per_generation * self.num_iterations",
            "self._step % generate_every == 0 or self._buffered_inputs is None",
            "self._generate_and_score_completions(generation_batch)",
            "self._buffered_inputs[self._step % self.args.steps_per_generation]",
        ),
    ),
    "_log_completion_extra": (("column", "values"), ("self._pending_extra_logs[column].extend(values)",)),
    "_calculate_rewards": (
        ("inputs", "prompts", "completions", "completion_ids_list"),
        ("rewards_per_func = gather(rewards_per_func)", "return rewards_per_func"),
    ),
    "_generate": (("prompts",), ("_generate_single_turn(",)),
    "_generate_and_score_completions": (
        ("inputs",),
        (
            "self._generate(prompts)",
            "self._calculate_rewards(inputs, prompts, completions, completion_ids_list)",
            'self._metrics[mode][f"rewards/{reward_func_name}/mean"].append',
            'self._metrics[mode][f"rewards/{reward_func_name}/std"].append',
            'self._metrics[mode]["reward"].append',
            'self._metrics[mode]["reward_std"].append',
            'self._metrics[mode]["frac_reward_zero_std"].append',
            'self._logs["advantages"].extend',
            "self._pending_extra_logs.clear()",
            '"completion_mask": completion_mask',
            '"advantages": advantages',
        ),
    ),
    "_get_per_token_logps_and_entropies": (("model", "input_ids", "attention_mask", "logits_to_keep"), ()),
}

# Where TRL's number of generations reaches the generation backend; inside ``_generate`` ours says 1 per row.
_GENERATION = {
    "GRPOTrainer": ("_generate", "num_generations = self.num_generations if mode"),
    "RLOOTrainer": ("_generate_single_turn", "num_generations = self.num_generations if mode"),
}

# RLOO puts the KL penalty into the reward; ours recomputes it from the reference's log-probabilities.
_RLOO_KL = (
    "ref_per_token_logps, _, _ = self._get_per_token_logps_and_entropies(",
    "self.ref_model,",
    "per_token_kl = old_per_token_logps - ref_per_token_logps",
    "kl = (per_token_kl * completion_mask).sum(-1)",
    "rewards = rewards - self.beta * kl",
)


def violations(trainer: type) -> list[str]:
    """What differs from the contract in a TRL trainer class (GRPOTrainer or RLOOTrainer); empty when it holds."""
    found: list[str] = []
    for name, (parameters, fragments) in _METHODS.items():
        method = getattr(trainer, name, None)
        if method is None:
            found.append(f"{trainer.__name__}.{name} is gone")
            continue
        missing = [p for p in parameters if p not in inspect.signature(method).parameters]
        if missing:
            found.append(f"{trainer.__name__}.{name} lost its parameters {missing}")
        found += _missing_text(trainer, name, fragments)
    where, text = _GENERATION[trainer.__name__]
    found += _missing_text(trainer, where, (text,))
    if trainer.__name__ == "RLOOTrainer":
        found += _missing_text(trainer, "_generate_and_score_completions", _RLOO_KL)
    save = inspect.getsource(Trainer._save_checkpoint)
    rng, state = save.find("self._save_rng_state(output_dir)"), save.find("self.state.save_to_json(")
    if not 0 <= rng < state:
        found.append("Trainer._save_checkpoint no longer saves the random states before trainer_state.json")
    return found


def check(trainer: type) -> None:
    """Refuse a TRL that does not keep the contract.

    Raises:
        ConfigurationError: names every part that moved, and the tested versions.
    """
    found = violations(trainer)
    if found:
        import trl

        raise ConfigurationError(
            f"the adaptive trainers need {TESTED_TRL}, but trl {trl.__version__} differs where they override it: "
            + "; ".join(found)
        )


def _missing_text(trainer: type, name: str, fragments: Sequence[str]) -> list[str]:
    method: Any = _plain(getattr(trainer, name))
    source = inspect.getsource(method)
    position, found = 0, []
    for fragment in fragments:
        at = source.find(fragment, position)
        if at < 0:
            found.append(f"{trainer.__name__}.{name} no longer has {fragment!r} where it was")
        else:
            position = at
    return found


def _plain(method: object) -> object:
    return inspect.unwrap(method)  # type: ignore[arg-type]  # TRL wraps some methods in a profiling decorator
