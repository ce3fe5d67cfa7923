"""Writes the report's files, each under a temporary name first."""

from __future__ import annotations

import json
from pathlib import Path

from viprl._files import write_text
from viprl.replay.report.data import report_data
from viprl.replay.report.page import render_page
from viprl.replay.report.picture import draw_picture
from viprl.replay.summary import Summary


def write_report(summary: Summary, folder: str | Path) -> list[Path]:
    """report.html, report.json and report.png in ``folder``; returns the paths.

    Raises:
        MissingDependencyError: matplotlib, for the PNG, is not installed; the other two are then written already.
    """
    root = Path(folder)
    data = json.dumps(report_data(summary), indent=1, ensure_ascii=False, allow_nan=False)
    write_text(root / "report.html", render_page(summary))
    write_text(root / "report.json", data)
    return [root / "report.html", root / "report.json", draw_picture(summary, root / "report.png")]
