"""A CPU platform and a Transformers rollout backend for verl's V1 trainer; for tests only.

Loaded in every Ray process by ``VERL_USE_EXTERNAL_MODULES=verl_cpu`` with ``VERL_PLATFORM=cpu`` and
``VERL_ENGINE_DEVICE=cuda``; no file of verl is changed. Ray's "GPU" slots are names only. See ``launch.py`` for a
whole command line.

    platform.py   torch on CPU, gloo
    rollout.py    backend "hf_cpu": one request at a time, each with its own seed
    agent.py      agent loop "seeded_single_turn": the seed is a hash of (step, prompt, session)
    policies.py   policy "zigzag": unequal groups from the first step on
    poll.py       a quicker replay buffer
    record.py     rows of every training batch as JSONL, for hand computations
    world.py      tiny model and data set
    rewards.py    reward functions
    launch.py     the command line
"""

# The platform first: the other modules import parts of verl that ask for one.
from verl_cpu import platform  # isort: skip
from verl_cpu import agent, policies, poll, record, rollout

__all__ = ["agent", "platform", "policies", "poll", "record", "rollout"]
