"""MkDocs hook: the first page is the README; links out of docs/ name the file in the checkout instead of breaking."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, *, config: Any) -> Files:
    """The README becomes index.md; its links are relative to the checkout's root."""
    text = LINK.sub(_from_root, (ROOT / "README.md").read_text())
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Links to files outside docs/ (experiments, examples) become their paths: the site does not carry them."""
    if page.file.src_uri == "index.md":
        return markdown
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def shown(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target:
            return match[0]
        path = (folder / target).resolve()
        inside = path.is_relative_to(ROOT / "docs") or not path.exists()  # what does not exist stays, and is reported
        return match[0] if inside else f"{words} (`{path.relative_to(ROOT)}{anchor}`)"

    return LINK.sub(shown, markdown)


def _from_root(match: re.Match[str]) -> str:
    words, target, anchor = match[1], match[2], match[3] or ""
    if "://" in target or not (ROOT / target).exists():
        return match[0]
    if target.startswith("docs/"):
        return f"[{words}]({target.removeprefix('docs/')}{anchor})"
    return f"{words} (`{target}`)"
