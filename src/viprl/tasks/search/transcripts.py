"""Rollouts for people to read: one HTML page without scripts, and JSON lines for programs."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from viprl.tasks.search.agent import Rollout
from viprl.tasks.search.rewards import outcome

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
article{border:1px solid #ddd;border-radius:.5rem;padding:1rem;margin:1.5rem 0}
h2{font-size:1.05rem;margin:0 0 .5rem}
.meta{color:#666;font-size:.85rem}
.right{border-left:.4rem solid #2a7}.wrong{border-left:.4rem solid #c44}
.think{background:#f6f6f6;color:#555;padding:.5rem;white-space:pre-wrap}
.call{background:#eef4ff;padding:.5rem;font-family:monospace;white-space:pre-wrap;margin:.4rem 0}
.passages{background:#fffbea;padding:.5rem;white-space:pre-wrap;font-size:.9rem;margin:.4rem 0}
.answer{font-weight:600;white-space:pre-wrap}
table{border-collapse:collapse}td,th{padding:.15rem .8rem .15rem 0;text-align:left}
"""


def to_record(rollout: Rollout, scores: Mapping[str, float]) -> dict[str, Any]:
    """One JSON-able record: question, gold answers, answer, scores, messages, searches, events."""
    return {
        "id": rollout.question.id,
        "question": rollout.question.question,
        "answers": list(rollout.question.answers),
        "answer": outcome(rollout.messages).answer,
        "stop": rollout.stop,
        "scores": dict(scores),
        "messages": rollout.messages,
        "searches": [
            {
                "query": record.query,
                "error": record.error,
                "passages": [{"id": h.passage.id, "title": h.passage.title, "score": h.score} for h in record.hits],
            }
            for record in rollout.session.records
        ],
        "events": {name: count for name, count in sorted(rollout.session.events.items()) if count},
    }


def write_jsonl(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """One record a line; whatever a model wrote is representable."""
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def write_html(path: Path, records: Sequence[Mapping[str, Any]], *, title: str, summary: Sequence[str] = ()) -> None:
    """A page with every record: reasoning, calls, passages, answer. All text is escaped."""
    rows = "".join(f"<tr><td>{html.escape(line)}</td></tr>" for line in summary)
    body = "\n".join(_article(record) for record in records)
    page = (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style>\n<h1>{html.escape(title)}</h1>\n<table>{rows}</table>\n{body}\n</html>\n"
    )
    path.write_text(page, encoding="utf-8", errors="xmlcharrefreplace")


def _article(record: Mapping[str, Any]) -> str:
    right = record["scores"].get("em", 0) == 1
    scores = ", ".join(f"{name} {value:.2f}" for name, value in record["scores"].items())
    parts = [
        f'<article class="{"right" if right else "wrong"}"><h2>{_text(record["question"])}</h2>',
        f'<p class="meta">{_text(record["id"])} · gold: {_text(" / ".join(record["answers"]))} · '
        f"answer: {_text(record['answer'] if record['answer'] is not None else '(none)')} · "
        f"{_text(record['stop'])} · {_text(scores)}</p>",
    ]
    for message in record["messages"]:
        if message["role"] == "tool":
            parts.append(f'<div class="passages">{_text(message["content"])}</div>')
            continue
        if message.get("reasoning_content"):
            parts.append(f'<div class="think">{_text(message["reasoning_content"])}</div>')
        if message.get("content"):
            parts.append(f'<div class="answer">{_text(message["content"])}</div>')
        parts.extend(f'<div class="call">{_text(call.get("raw", ""))}</div>' for call in message.get("tool_calls", ()))
    if record["events"]:
        events = ", ".join(f"{name} {count}" for name, count in record["events"].items())
        parts.append(f'<p class="meta">{_text(events)}</p>')
    return "".join([*parts, "</article>"])


def _text(value: Any) -> str:
    return html.escape(str(value).encode("utf-8", "replace").decode("utf-8"))
