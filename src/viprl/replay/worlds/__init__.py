"""The four protocols: a recorded log, a pool with known rates, synthetic drift, and resampling from a log."""

from viprl.replay.worlds.base import Step, World
from viprl.replay.worlds.drifting import DEFAULT_EVENTS, DriftingPrompts, Event
from viprl.replay.worlds.pool import PromptPool, rates_to_probabilities
from viprl.replay.worlds.recorded import RecordedLog

__all__ = [
    "DEFAULT_EVENTS",
    "DriftingPrompts",
    "Event",
    "PromptPool",
    "RecordedLog",
    "Step",
    "World",
    "rates_to_probabilities",
]
