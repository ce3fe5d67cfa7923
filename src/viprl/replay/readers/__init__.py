"""Readers of the logs that people have: viprl's history, verl's dumps, TRL's completions, CSV."""

from viprl.replay.readers.detect import FORMATS, read_log
from viprl.replay.readers.rates import Rates, rates_of_log, read_rates
from viprl.replay.readers.report import LogFormatError, ReadReport

__all__ = ["FORMATS", "LogFormatError", "Rates", "ReadReport", "rates_of_log", "read_log", "read_rates"]
