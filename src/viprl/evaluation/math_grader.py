"""Grade final answers with math-verify in a process of its own.

math-verify's own time limits are signals, which work in the main thread alone; without them one answer such as
10^(10^10) can hold a training run for ever. Here answers go to a worker process over a pipe, and a worker that takes
too long for one answer is ended and replaced. The worker is started as a module, so nothing of the caller's script is
imported again.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import queue
import re
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Sequence
from typing import Any

from viprl.errors import InvalidInputError, MissingDependencyError

logger = logging.getLogger("viprl")

LONGEST_ANSWER = 512  # characters; longer ones are wrong without being parsed
START_SECONDS = 120.0  # importing sympy on a busy machine
_ANSWER_LINE = re.compile(r"^\s*\**\s*(?:final\s+)?answer\s*\**\s*[:=]\s*\**\s*(.+?)\s*$", re.IGNORECASE)

_NUMBER = re.compile(r"^-?[\d,]*\.?\d+$")
_COUNTED = re.compile(
    r"^(-?[\d,]*\.?\d+)\s+(?!hundred|thousand|[mb]illion|dozen|percent)[a-z]+(?:\s[a-z]+)?$", re.IGNORECASE
)


def final_answer(text: str) -> str | None:
    r"""The final answer of a solution: its last line "Answer: ...", else its last ``\boxed{...}``; None without.

    Unclosed braces are no answer. A line "Answer: \boxed{7}" gives 7.

    >>> final_answer("So 3 + 4 = 7.\nAnswer: 7")
    '7'
    """
    for line in reversed(text.splitlines()):
        match = _ANSWER_LINE.match(line)
        if match:
            found = match.group(1).strip()
            return _last_boxed(found) or found
    return _last_boxed(text)


def _last_boxed(text: str) -> str | None:
    start = text.rfind("\\boxed{")
    while start >= 0:
        depth = 0
        for position in range(start + len("\\boxed"), len(text)):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if depth == 0:
                return text[start + len("\\boxed{") : position].strip()
        start = text.rfind("\\boxed{", 0, start)
    return None


class MathGrader:
    """Compares answers with gold answers in a worker process.

    Args:
        seconds: longest time for one pair; a pair that takes longer counts as wrong.

    Attributes:
        timeouts: pairs that took too long so far.
    """

    def __init__(self, *, seconds: float = 5.0) -> None:
        if not seconds > 0:
            raise InvalidInputError(f"seconds > 0 must hold, but got {seconds}")
        self.seconds = float(seconds)
        self.timeouts = 0
        self._known: dict[tuple[str, str], float | None] = {}
        self._worker: _Worker | None = None

    def grade(self, answers: Sequence[str | None], golds: Sequence[str]) -> list[float | None]:
        """1.0 or 0.0 for each pair; 0.0 for no answer; None where the gold answer cannot be parsed.

        A pair equal up to white space, dollar signs and a final full stop is right without being parsed. Where the gold
        answer is a number, a unit after the answer's number is left out ("17 dollars" is 17).
        """
        return [self._grade(answer, gold) for answer, gold in zip(answers, golds, strict=True)]

    def close(self) -> None:
        """End the worker; the next pair starts another."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _grade(self, answer: str | None, gold: str) -> float | None:
        if answer is None or len(answer) > LONGEST_ANSWER:
            return 0.0
        left, right = _plain(answer), _plain(gold)
        counted = _COUNTED.match(left)
        if counted and _NUMBER.match(right):
            left = counted.group(1)
        if left == right:
            return 1.0
        if not left:
            return 0.0
        if (left, right) not in self._known:
            if len(self._known) > 100_000:
                self._known.clear()
            self._known[left, right] = self._ask(left, right)
        return self._known[left, right]

    def _ask(self, answer: str, gold: str) -> float | None:
        if self._worker is None:
            self._worker = _Worker()
        reply = self._worker.ask({"answer": answer, "gold": gold}, self.seconds)
        if reply is None:
            self.timeouts += 1
            logger.warning("grading %r took over %g s or ended the grader; it counts as wrong", answer, self.seconds)
            self.close()
            return 0.0
        return {"equal": 1.0, "different": 0.0, "gold unreadable": None}[reply["verdict"]]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_worker": None}


class _Worker:
    """One worker process; replies arrive through a thread so that waiting can end."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "viprl.evaluation.math_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C lets the run save; the grader must answer until then
        )
        self._replies: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        atexit.register(self.end)
        ready = self._reply(START_SECONDS)
        if ready is None or ready.get("verdict") != "ready":
            self.end()
            raise MissingDependencyError.of("grading mathematics", "math-verify")

    def ask(self, request: dict[str, str], seconds: float) -> dict[str, Any] | None:
        """The reply, or None after ``seconds`` or when the worker has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError:
            return None
        return self._reply(seconds)

    def end(self) -> None:
        atexit.unregister(self.end)
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.close()

    def _reply(self, seconds: float) -> dict[str, Any] | None:
        try:
            line = self._replies.get(timeout=seconds)
        except queue.Empty:
            return None
        return dict(json.loads(line)) if line else None

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                self._replies.put(line)
        self._replies.put("")


def _plain(text: str) -> str:
    """Without dollar signs around it, surrounding white space, Unicode minus signs and a final full stop."""
    plain = unicodedata.normalize("NFKC", text).replace("\u2212", "-").strip()
    plain = plain.removeprefix("\\(").removesuffix("\\)").removeprefix("\\[").removesuffix("\\]")
    while len(plain) > 1 and plain.startswith("$") and plain.endswith("$"):
        plain = plain[1:-1].strip()
    return plain.rstrip(".").replace("\\!", "").strip("* ")
