"""A replay buffer that looks for finished rollouts ten times a second instead of every two seconds."""

from __future__ import annotations

import functools
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

_init = ReplayBuffer.__init__


@functools.wraps(_init)
def _quick(self: Any, *args: Any, **kwargs: Any) -> None:
    _init(self, *args, **{"poll_interval": 0.1, **kwargs})


ReplayBuffer.__init__ = _quick
