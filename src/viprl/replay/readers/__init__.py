"""Readers of the logs that people have: viprl's history, verl's dumps, TRL's completions, tables."""

from viprl.replay.readers.detect import FORMATS, read_log
from viprl.replay.readers.rates import read_rates
from viprl.replay.readers.report import LogFormatError, ReadReport

__all__ = ["FORMATS", "LogFormatError", "ReadReport", "read_log", "read_rates"]
