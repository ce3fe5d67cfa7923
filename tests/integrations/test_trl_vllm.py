"""The calls to vLLM: one completion per row, whatever TRL's number of generations. A stand-in takes the client's place.

TRL's server path keeps every num_generations-th prompt and asks for that many completions of each; with uneven groups
that would pair completions with the wrong prompts.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("trl")
import tiny
from trl.generation.vllm_generation import VLLMGeneration
from trl_runs import Fixed, Recorder, make


class StandIn:
    """Answers every prompt with its own last letters, so a completion tells which prompt it was sampled for."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def generate(self, prompts: list[list[int]], features: Any, n: int, **sampling: Any) -> dict[str, Any]:
        self.calls.append({"prompts": prompts, "n": n, **sampling})
        completions = [[*ids[:2], 1] for ids in prompts for _ in range(n)]
        return {
            "prompt_ids": prompts,
            "completion_ids": completions,
            "logprobs": [[[-1.0]] * len(ids) for ids in completions],
        }


def backend(trainer: Any, client: Any) -> VLLMGeneration:
    """TRL's generation backend in server mode without a server."""
    generation = object.__new__(VLLMGeneration)
    vars(generation).update(
        mode="server", accelerator=trainer.accelerator, vllm_client=client, enable_sleep_mode=False,
        temperature=1.0, top_p=1.0, top_k=0, min_p=None, repetition_penalty=1.0, logprobs=0,
        max_completion_length=tiny.MAX_NEW_TOKENS, structured_outputs_regex=None, generation_kwargs={},
    )  # fmt: skip
    generation.sync_weights = lambda: None
    return generation


def with_stand_in(kind: str, folder: Any, **options: Any) -> tuple[Any, StandIn]:
    trainer = make(kind, folder, policy=Fixed(9, 2, 5, 3, 3, 2), **options)
    client = StandIn()
    trainer.vllm_generation = backend(trainer, client)
    trainer.use_vllm, trainer._last_loaded_step = True, -1
    return trainer, client


def reward(prompts, completions, **_):
    """Right exactly when the completion was sampled for this prompt."""
    return [float(p.startswith(c)) for p, c in zip(prompts, completions, strict=True)]


@pytest.mark.parametrize("kind", ["dr_grpo", "rloo"])
def test_every_row_is_asked_for_once(kind, tmp_path):
    trainer, client = with_stand_in(kind, tmp_path, reward_funcs=reward, max_steps=2)
    record = Recorder(trainer)
    trainer.train()
    assert len(client.calls) == 2
    for call, step, rows in zip(client.calls, record.steps, record.batches, strict=True):
        assert call["n"] == 1 and len(call["prompts"]) == 24
        asked = tiny.tokenizer().batch_decode(call["prompts"])
        assert asked == [p for p, _, _ in rows]
        counts = [asked.count(p) for p in dict.fromkeys(asked)]
        assert counts == step.group_sizes.tolist() == [9, 2, 5, 3, 3, 2]
        assert step.rewards.tolist() == [1.0] * 24  # every completion came back to its prompt
    assert trainer.num_generations == 4


def test_stock_trl_would_misalign(tmp_path):
    """The test above can fail: with TRL's own number of generations the same rows come back to other prompts."""
    trainer, client = with_stand_in("dr_grpo", tmp_path, reward_funcs=reward, max_steps=1)
    trainer._generations = lambda count: contextlib.nullcontext()
    trainer.train()
    assert client.calls[0]["n"] == 4
    assert np.mean(trainer.last_step.rewards) < 1.0


@pytest.mark.parametrize("kind", ["dr_grpo", "rloo"])
def test_evaluation_keeps_trls_calls(kind, tmp_path):
    trainer, client = with_stand_in(kind, tmp_path, reward_funcs=reward, max_steps=1, per_device_eval_batch_size=8)
    trainer.train()
    trainer.evaluate(tiny.dataset(4, seed=3))
    assert [call["n"] for call in client.calls] == [1, 4, 4]
    assert [len(call["prompts"]) for call in client.calls] == [24, 2, 2]


def test_number_of_generations_comes_back_after_an_error(tmp_path):
    trainer, client = with_stand_in("rloo", tmp_path)
    client.generate = lambda **_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    assert trainer.num_generations == 4


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo"])
def test_rollout_function_gets_one_row_per_completion(kind, tmp_path, monkeypatch):
    """TRL's own hook for custom rollouts sees the expanded rows and num_generations == 1."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    seen = []

    def rollout(prompts, trainer):
        seen.append((list(prompts), trainer.num_generations))
        ids = [tiny.tokenizer()(p)["input_ids"] for p in prompts]
        return {"prompt_ids": ids, "completion_ids": [[*i[:2], 1] for i in ids], "logprobs": [[-1.0] * 3 for _ in ids]}

    trainer = make(
        kind, tmp_path, policy=Fixed(9, 2, 5, 3, 3, 2), rollout_func=rollout, reward_funcs=reward, max_steps=1
    )
    trainer.train()
    prompts, generations = seen[0]
    assert generations == 1 and [prompts.count(p) for p in dict.fromkeys(prompts)] == [9, 2, 5, 3, 3, 2]
    assert trainer.last_step.rewards.tolist() == [1.0] * 24
