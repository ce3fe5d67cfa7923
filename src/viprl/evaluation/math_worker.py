"""The grader's process: one JSON request a line on stdin, one JSON verdict a line on stdout."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any


def main() -> int:
    """Answer requests until stdin closes."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig

    logging.disable(logging.CRITICAL)  # "timeout is disabled" on every call: the parent process keeps the time
    extraction = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
    _reply("ready")
    for line in sys.stdin:
        request = json.loads(line)
        _reply(verdict(request["answer"], request["gold"], extraction))
    return 0


def verdict(answer: str, gold: str, extraction: Any) -> str:
    """ "equal", "different" or "gold unreadable"; malformed answers are different, never an error."""
    from math_verify import verify

    gold_parsed = _parse(gold, extraction)
    if not gold_parsed:
        return "gold unreadable"
    answer_parsed = _parse(answer, extraction)
    try:
        equal = bool(answer_parsed) and verify(gold_parsed, answer_parsed, timeout_seconds=None)
    except Exception:  # sympy raises many kinds on odd expressions
        equal = False
    return "equal" if equal else "different"


def _parse(text: str, extraction: Any) -> list[Any]:
    """As LaTeX in a box, else as plain text; an empty list where neither parses."""
    from math_verify import parse

    for source in (f"$\\boxed{{{text}}}$", text):
        try:
            parsed = parse(source, extraction_config=extraction, parsing_timeout=None)
        except Exception:  # malformed LaTeX must cost a reward, not the run
            parsed = []
        if any(not isinstance(item, str) for item in parsed):
            return list(parsed)
    return []


def _reply(text: str) -> None:
    sys.stdout.write(json.dumps({"verdict": text}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
