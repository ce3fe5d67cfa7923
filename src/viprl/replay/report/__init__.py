"""The report: report.html, report.json, report.png."""

from viprl.replay.report.write import write_report

__all__ = ["write_report"]
