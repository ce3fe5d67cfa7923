"""Before a run: what allocation can gain on prompts with these success rates, and which L, U and C to take."""

from viprl.replay.forecast.gains import BudgetRow, Forecast, Gain, forecast
from viprl.replay.forecast.words import forecast_data, forecast_lines, reasons

__all__ = ["BudgetRow", "Forecast", "Gain", "forecast", "forecast_data", "forecast_lines", "reasons"]
