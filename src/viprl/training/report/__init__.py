"""The report of a job: numbers, pictures, one self-contained page."""

from viprl.training.report.write import write_report

__all__ = ["write_report"]
