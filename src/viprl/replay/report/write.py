"""Writes the report's files, each whole or not there."""

from __future__ import annotations

import json
from pathlib import Path

from viprl._files import write_text
from viprl.replay.report.charts import sheet
from viprl.replay.report.data import report_data
from viprl.replay.report.page import render_page
from viprl.replay.summary import Summary
from viprl.replay.wording import headline
from viprl.reports.png import write_png


def write_report(summary: Summary, folder: str | Path) -> list[Path]:
    """report.html, report.json and report.png in ``folder``; returns the paths.

    Without matplotlib there is no report.png; a warning says so.
    """
    root = Path(folder)
    data = json.dumps(report_data(summary), indent=1, ensure_ascii=False, allow_nan=False)
    write_text(root / "report.html", render_page(summary))
    write_text(root / "report.json", data)
    picture = write_png(root / "report.png", sheet(summary), title=headline(summary))
    return [root / "report.html", root / "report.json", *picture]
