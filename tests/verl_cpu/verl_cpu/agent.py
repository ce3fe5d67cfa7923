"""Agent loop "seeded_single_turn": verl's single turn, with a seed per (step, prompt, session)."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from verl.experimental.agent_loop.agent_loop import register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop


def seed_of(step: int, prompt: Any, session: int) -> int:
    """63 bits from the step, the conversation and the session's number."""
    text = json.dumps([int(step), [dict(message) for message in prompt], int(session)], sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@register("seeded_single_turn")
class SeededSingleTurn(SingleTurnAgentLoop):
    """``VERL_CPU_FAIL=step`` makes every rollout from that step on fail; ``extra_info.fault == "rollout"`` a prompt's
    first session."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        step, session = int(kwargs["global_steps"]), int(kwargs["session_id"])
        fault = (kwargs.get("extra_info") or {}).get("fault")
        if step >= int(os.environ.get("VERL_CPU_FAIL", 10**9)) or (fault == "rollout" and session == 0):
            raise RuntimeError(f"this rollout fails on purpose (step {step}, session {session})")
        seed = seed_of(step, kwargs["raw_prompt"], session)
        return await super().run({**sampling_params, "seed": seed}, **kwargs)
