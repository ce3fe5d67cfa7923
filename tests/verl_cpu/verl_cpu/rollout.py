"""Rollout backend "hf_cpu": a Transformers model in a Ray actor, one request at a time.

Each request samples from its own generator, so its tokens depend on nothing but the weights, the prompt and the seed.
Every answer starts with the first word of its question, which names the prompt: rows that get mixed up show.
"""

from __future__ import annotations

import asyncio
from typing import Any

import torch
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

NAME = "hf_cpu"
QUESTION = "u:"  # how the tiny chat template opens a user's message


def server_name(rank: int) -> str:
    return f"{NAME}_server_{rank}"


class Server:
    """The server interface that verl's client and checkpoint engine use."""

    def __init__(self, model_path: str, response_length: int) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)
        self.tokenizer = AutoTokenizer.from_pretrained(model_path)
        self.model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
        self.response_length = response_length
        self.global_steps: int | None = None
        self.lock = asyncio.Lock()

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **unused: Any
    ) -> TokenOutput:
        async with self.lock:
            await asyncio.sleep(0)
            return self._generate(list(prompt_ids), sampling_params)

    def _name_of(self, prompt_ids: list[int]) -> list[int]:
        question = self.tokenizer.decode(prompt_ids).rpartition(QUESTION)[2]
        return self.tokenizer.encode(question.split()[0] + " ", add_special_tokens=False)

    @torch.no_grad()
    def _generate(self, prompt_ids: list[int], params: dict[str, Any]) -> TokenOutput:
        temperature = float(params.get("temperature", 1.0))
        generator = torch.Generator().manual_seed(int(params.get("seed", 0)))
        forced = self._name_of(prompt_ids)
        tokens: list[int] = []
        log_probs: list[float] = []
        inputs, cache = torch.tensor([prompt_ids]), None
        while len(tokens) < self.response_length:
            out = self.model(input_ids=inputs, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            scores = torch.log_softmax(out.logits[0, -1] / (temperature or 1.0), dim=-1)
            if len(tokens) < len(forced):
                token = forced[len(tokens)]
            elif temperature == 0:
                token = int(scores.argmax())
            else:
                token = int(torch.multinomial(scores.exp(), 1, generator=generator))
            tokens.append(token)
            log_probs.append(float(scores[token]))
            if token == self.tokenizer.eos_token_id:
                break
            inputs = torch.tensor([[token]])
        return TokenOutput(
            token_ids=tokens,
            log_probs=log_probs,
            stop_reason="completed",
            extra_fields={"global_steps": self.global_steps},
        )

    async def set_weights(self, weights: dict[str, torch.Tensor], global_steps: int | None) -> None:
        unexpected = self.model.load_state_dict(weights, strict=False).unexpected_keys
        if unexpected:
            raise ValueError(f"the trainer's weights must be the model's, but got {unexpected}")
        self.global_steps = global_steps

    async def _nothing(self, *args: Any, **kwargs: Any) -> None: ...

    wake_up = sleep = abort_all_requests = resume_generation = _nothing
    clear_kv_cache = release_kv_cache = resume_kv_cache = start_profile = stop_profile = _nothing


class Replica(RolloutReplica):
    async def launch_servers(self) -> None:
        import ray

        actor = ray.remote(Server).options(name=server_name(self.replica_rank), num_cpus=0, max_concurrency=1000)
        handle = actor.remote(self.model_config.path, self.config.response_length)
        self.servers, self._server_handle = [handle], handle
        self._server_address = f"{NAME}:{self.replica_rank}"


class ServerAdapter(BaseRollout):
    """Lives in the training worker and hands its weights to the server; one replica per rank (tensor parallel 1)."""

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(self, weights: Any, global_steps: int | None = None, **unused: Any) -> None:
        import ray
        from verl.workers.rollout.utils import ensure_async_iterator

        state = {}
        async for name, tensor in ensure_async_iterator(weights):
            state[name] = tensor.detach().to("cpu", torch.float32).clone()
        rank = torch.distributed.get_rank()
        await ray.get_actor(server_name(rank)).set_weights.remote(state, global_steps)


_ROLLOUT_REGISTRY[(NAME, "async")] = f"{__name__}.ServerAdapter"
RolloutReplicaRegistry.register(NAME, lambda: Replica)
