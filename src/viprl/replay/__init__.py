"""Policies compared offline, on recorded or simulated rollouts, before a GPU-hour is spent."""

from viprl.replay.engine.compare import Comparison, compare
from viprl.replay.engine.run import replay
from viprl.replay.engine.trace import Trace
from viprl.replay.lineup import default_lineup
from viprl.replay.log import VisitLog
from viprl.replay.readers import LogFormatError, ReadReport, read_log, read_rates
from viprl.replay.rules import Rule, Setting
from viprl.replay.summary import Summary, summarize
from viprl.replay.worlds import DriftingPrompts, Event, PromptPool, RecordedLog

__all__ = [
    "Comparison",
    "DriftingPrompts",
    "Event",
    "LogFormatError",
    "PromptPool",
    "ReadReport",
    "RecordedLog",
    "Rule",
    "Setting",
    "Summary",
    "Trace",
    "VisitLog",
    "compare",
    "default_lineup",
    "read_log",
    "read_rates",
    "replay",
    "summarize",
]
