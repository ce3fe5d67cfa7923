"""Writes the report's files, each under a temporary name first."""

from __future__ import annotations

import json
import os
from pathlib import Path

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
    root.mkdir(parents=True, exist_ok=True)
    data = json.dumps(report_data(summary), indent=1, ensure_ascii=False, allow_nan=False)
    files = [_replace(root / "report.html", render_page(summary)), _replace(root / "report.json", data)]
    return [*files, draw_picture(summary, root / "report.png")]


def _replace(path: Path, text: str) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
    return path
