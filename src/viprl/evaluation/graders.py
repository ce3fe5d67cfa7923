"""What each completion answers and whether it is correct: one grader for all problems of an evaluation.

- ``recorded``: the marks that the file has. Missing ones are left out, or count as wrong where that is asked for.
- ``exact``: the whole completion is the answer and equals a gold answer as text (``text_match``).
- ``final``: the answer is the last "Answer: ..." line or ``\\boxed{}``, compared as text.
- ``math``: the same answer, compared as mathematics (math-verify).

Where none is named: ``recorded`` if the file has any mark; else ``exact``, unless at least half of the completions
have a final answer; then ``math`` where at least half of the problems have a gold answer that is mathematics, else
``final``.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from viprl.errors import ConfigurationError, MissingDependencyError
from viprl.evaluation.answers import exact_match, normalize_answer
from viprl.evaluation.completions import Completions, Problem

GRADERS = ("recorded", "exact", "final", "math")
FINAL = "the final answer ('Answer: ...' or \\boxed{})"
_NO_ANSWER = "[INVALID]"  # what verl's mathematical rewards record
_WORD = re.compile(r"[^\W\d_]{3,}")
_COMMAND = re.compile(r"\\(?:text|mathrm|mbox)\{[^}]*\}|\\[A-Za-z]+")


@dataclass
class Grader:
    """Answers and marks of completions; close it after use.

    Attributes:
        name: one of ``GRADERS``.
        source: where answers come from: "whole" completions, "final" answers, or a "column" of the file.
        meaning: what counts as correct, in words.
        missing_wrong: completions without a recorded mark count as wrong.
    """

    name: str
    source: str
    meaning: str
    missing_wrong: bool = False
    _math: Any = None

    def answers(self, problem: Problem) -> list[str | None]:
        """The answer of each completion; None without one."""
        if self.source == "whole":
            return list(problem.completions)
        if self.source == "column":
            return [None if answer == _NO_ANSWER else answer for answer in problem.extracted]
        return [None if text is None else _final_answer(text) for text in problem.completions]

    def marks(self, problem: Problem, answers: Sequence[str | None]) -> list[float | None]:
        """Correctness of each completion in [0, 1]; None where it is unknown."""
        if self.name == "recorded":
            return [0.0 if mark is None and self.missing_wrong else mark for mark in problem.correct]
        if self.name != "math":
            return [text_match(answer, problem.gold) if problem.gold else None for answer in answers]
        if self._math is None:
            from viprl.evaluation.math_grader import MathGrader

            self._math = MathGrader()
        best: list[float | None] = [None] * len(answers)
        for gold in problem.gold:  # a gold answer that cannot be read says nothing
            for place, mark in enumerate(self._math.grade(answers, [gold] * len(answers))):
                best[place] = mark if best[place] is None else max(best[place] or 0.0, mark or 0.0)
        # answers that need no comparison are graded even where no gold answer can be read
        return best if all(mark is not None for mark in best) else [None] * len(answers)

    @property
    def timeouts(self) -> int:
        """Comparisons that took too long and counted as wrong."""
        return int(self._math.timeouts) if self._math is not None else 0

    def close(self) -> None:
        """End the process that compares mathematics."""
        if self._math is not None:
            self._math.close()


def choose_grader(found: Completions, name: str | None = None, *, missing_wrong: bool = False) -> Grader:
    """The grader of a set of completions: the one named, or by the rule at the head of this file.

    Raises:
        ConfigurationError: the grader needs marks or gold answers that the file has not, or is unknown.
        MissingDependencyError: mathematics is to be compared without math-verify.
    """
    if name is not None and name not in GRADERS:
        raise ConfigurationError(f"a grader must be one of {', '.join(GRADERS)}, but got {name!r}")
    marked = any(mark is not None for problem in found.problems for mark in problem.correct)
    gold = [problem.gold[0] for problem in found.problems if problem.gold]
    written = not found.columns.keys().isdisjoint({"completion", "extracted"})
    if name == "recorded" and not marked:
        raise ConfigurationError("--grader recorded needs marks (column correct, score or reward), but there are none")
    if name not in (None, "recorded") and not (gold and written):
        raise ConfigurationError(
            f"--grader {name} needs completions and gold answers, but the columns are {found.columns}; "
            "--columns completion=NAME,gold=NAME names them, --gold another file"
        )
    final = "extracted" in found.columns or _have_final_answers(found)
    if name is not None:
        chosen = name
    elif marked or not written:
        chosen = "recorded"
    else:
        chosen = "exact" if not final else "math" if 2 * sum(map(_mathematical, gold)) >= max(len(gold), 1) else "final"
    source = "column" if "extracted" in found.columns else "final"
    if chosen == "exact" or (chosen == "recorded" and not final):
        source = "whole"
    if chosen == "math" and importlib.util.find_spec("math_verify") is None:
        raise MissingDependencyError.of(
            "comparing answers as mathematics (--grader final compares text)", "math-verify"
        )
    return Grader(chosen, source, _meaning(chosen, source, found, named=name is not None), missing_wrong)


def text_match(answer: str | None, gold: Sequence[str]) -> float:
    """``exact_match``, but where a gold answer is mathematics its signs and points count: -7 is not 7."""
    if answer is None:
        return 0.0
    return float(any(vote_text(answer) == vote_text(g) if _mathematical(g) else exact_match(answer, g) for g in gold))


def vote_text(answer: str | None) -> str:
    """The text by which answers are told apart: normalised, with the punctuation of mathematics; empty without one."""
    if answer is None:
        return ""
    if _mathematical(answer):
        return "".join(answer.lower().split()).strip("$").rstrip(".")
    return normalize_answer(answer)


def _have_final_answers(found: Completions) -> bool:
    """At least half of the completions have one."""
    texts = [text for problem in found.problems for text in problem.completions if text is not None]
    return bool(texts) and 2 * sum(_final_answer(text) is not None for text in texts) >= len(texts)


def _mathematical(gold: str) -> bool:
    """A number or a formula: has a digit or a command, and no word of three letters outside of commands."""
    return bool(re.search(r"[\d\\]", gold)) and not _WORD.search(_COMMAND.sub(" ", gold))


def _meaning(name: str, source: str, found: Completions, *, named: bool) -> str:
    if name == "recorded":
        return f"as recorded in {found.columns['correct']!r}" if "correct" in found.columns else "not recorded"
    answer = {
        "whole": "the whole completion",
        "final": FINAL,
        "column": f"the answer in {found.columns.get('extracted')!r}",
    }[source]
    how = "equals a gold answer as mathematics" if name == "math" else "equals a gold answer as text"
    return f"{answer} {how} (--grader {name}{'' if named else ', chosen from the data'})"


def _final_answer(text: str) -> str | None:
    from viprl.evaluation.math_grader import final_answer

    return final_answer(text)
