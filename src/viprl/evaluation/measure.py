"""All measures of a set of completions, each with a 95% interval over problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from viprl.errors import InvalidInputError
from viprl.evaluation.answers import token_overlap
from viprl.evaluation.completions import Completions, Problem
from viprl.evaluation.graders import FINAL, Grader, choose_grader, text_match, vote_text
from viprl.evaluation.intervals import Interval, bootstrap_interval, wilson_interval
from viprl.evaluation.retrieval import retrieval_f1_at_k, retrieval_precision_at_k, retrieval_recall_at_k
from viprl.evaluation.sampling import maj_at_k, mean_at_k, pass_at_k

RIGHT = "right"  # stands for every answer that is graded correct, so that spellings of it vote together


@dataclass
class Evaluation:
    """What was measured.

    Attributes:
        measures: name -> estimate with its interval, in [0, 1].
        problems, completions: how many.
        correct: what counts as correct in Pass, Mean and Maj, in words; empty where nothing could be judged.
        notes: what was left out or counted by a rule, in sentences.
    """

    measures: dict[str, Interval]
    problems: int
    completions: int
    correct: str = ""
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The evaluation as text."""
        width = max(map(len, self.measures), default=0)
        head = [f"{self.problems:,} problems, {self.completions:,} completions; 95% intervals over problems"]
        if self.correct:
            head.append(f"correct: {self.correct}")
        rows = [f"{name:<{width}}  {v.estimate:.4f}  [{v.low:.4f}, {v.high:.4f}]" for name, v in self.measures.items()]
        return [*head, *rows, *(f"note: {note}" for note in self.notes)]


@dataclass
class _Judged:
    """A problem's completions that have a mark: (n,) marks and (n,) answers."""

    marks: list[float]
    answers: list[str | None]


def measure(
    found: Completions,
    *,
    grader: Grader | None = None,
    ks: Sequence[int] = (),
    retrieval_k: int = 5,
    seed: int = 0,
) -> Evaluation:
    """Pass@k, Mean@k, Maj@k, EM, token F1/precision/recall and retrieval scores, as far as the data allow.

    Args:
        found: see ``read_completions``.
        grader: says what each completion answers and whether it is correct; by default ``choose_grader(found)``.
        ks: for Pass, Mean and Maj; by default 1 and the number of marked completions that every problem has.
        retrieval_k: cut of the retrieval scores.
        seed: of the bootstrap and of sampled votes.

    Raises:
        InvalidInputError: a k larger than a problem's number of marked completions, or nothing to measure.
    """
    grader = grader or choose_grader(found)
    notes = list(found.notes)
    answers = [grader.answers(problem) for problem in found.problems]
    marks = [grader.marks(p, a) for p, a in zip(found.problems, answers, strict=True)]
    values: dict[str, list[float]] = {}
    judged = _judged(found.problems, answers, marks, grader, notes)
    if judged:
        _sampling(values, judged, ks, grader, notes, seed)
    _answers(values, found, answers)
    _retrieval(values, found.problems, retrieval_k, notes)
    if not values:
        raise InvalidInputError(
            "completions need marks, texts with gold answers, or retrieved and supporting passages, but the columns "
            f"that were found are {found.columns}; which are the others (--columns correct=NAME or gold=NAME)? "
            f"{', '.join(found.unread) or 'there are none'}"
        )
    measures = {name: _interval(numbers, seed) for name, numbers in values.items()}
    completions = sum(len(p.completions) for p in found.problems)
    return Evaluation(measures, len(found.problems), completions, grader.meaning if judged else "", notes)


def _judged(
    problems: Sequence[Problem],
    answers: Sequence[Sequence[str | None]],
    marks: Sequence[Sequence[float | None]],
    grader: Grader,
    notes: list[str],
) -> list[_Judged]:
    """The problems with a mark; what is left out or counted by a rule is noted."""
    kept = []
    for given, row in zip(answers, marks, strict=True):
        pairs = [(mark, answer) for mark, answer in zip(row, given, strict=True) if mark is not None]
        if pairs:
            kept.append(_Judged([mark for mark, _ in pairs], [answer for _, answer in pairs]))
    if not kept:
        return []
    total = sum(map(len, marks))
    if grader.name == "recorded":
        absent = sum(mark is None for problem in problems for mark in problem.correct)
        if absent:
            rule = "count as wrong" if grader.missing_wrong else "are left out of Pass, Mean and Maj (--missing wrong)"
            notes.append(f"{absent:,} of {total:,} completions have no recorded mark and {rule}")
    elif not any(mark > 0 for problem in kept for mark in problem.marks):
        other = {"exact": "; --grader math or final compares final answers", "final": "; --grader math compares values"}
        notes.append(
            f"0 of {sum(len(p.marks) for p in kept):,} completions match their gold answer{other.get(grader.name, '')}"
        )
    if len(kept) < len(problems):
        why = "have no mark" if grader.name == "recorded" else "have no gold answer that can be compared"
        notes.append(f"{len(problems) - len(kept):,} problems {why} and are left out of Pass, Mean and Maj")
    if any(0 < mark < 1 for problem in kept for mark in problem.marks):
        notes.append("some completions are partly correct: Pass and Maj count only fully correct ones")
    if grader.timeouts:
        notes.append(f"{grader.timeouts:,} comparisons took too long and count as wrong")
    return kept


def _sampling(
    values: dict[str, list[float]],
    judged: Sequence[_Judged],
    ks: Sequence[int],
    grader: Grader,
    notes: list[str],
    seed: int,
) -> None:
    sizes = [len(problem.marks) for problem in judged]
    fewest = min(sizes)
    hits = [sum(mark >= 1.0 for mark in problem.marks) for problem in judged]
    wanted = list(dict.fromkeys(ks)) or sorted({1, fewest})
    vote = max(wanted) > 1 and _may_vote(judged, grader, notes)
    for k in wanted:
        if k > fewest:
            raise InvalidInputError(
                f"k <= n must hold for every problem, but got (k={k}, n={fewest}): a problem has {fewest} completions"
                " with a mark"
            )
        values[f"pass@{k}"] = np.atleast_1d(pass_at_k(sizes, hits, k)).tolist()
        values[f"mean@{k}"] = [mean_at_k(problem.marks, k) for problem in judged]
        if k > 1 and vote:
            values[f"maj@{k}"] = [maj_at_k(_votes(problem), RIGHT, k, seed=seed) for problem in judged]


def _may_vote(judged: Sequence[_Judged], grader: Grader, notes: list[str]) -> bool:
    """Whether the completions have answers to vote with; noted where not, or where some have none."""
    total = sum(len(problem.answers) for problem in judged)
    if grader.name == "recorded" and grader.source == "whole":
        notes.append(
            f"no Maj: votes are answers, but fewer than half of the completions have {FINAL} or a column of answers "
            "(--columns extracted=NAME); --grader exact takes whole completions for answers where there are gold ones"
        )
        return False
    blank = sum(not vote_text(answer) for problem in judged for answer in problem.answers)
    if blank:
        notes.append(f"{blank:,} of {total:,} completions have no answer and do not vote in Maj")
    return True


def _votes(problem: _Judged) -> list[str | None]:
    """What each completion votes for: all right answers the same, wrong ones their normalised text, blanks nothing.

    An answer is right where at least half of the completions that give it are marked correct.
    """
    marks: dict[str, list[bool]] = {}
    said = [vote_text(answer) for answer in problem.answers]
    for text, mark in zip(said, problem.marks, strict=True):
        marks.setdefault(text, []).append(mark >= 1.0)
    right = {text for text, given in marks.items() if 2 * sum(given) >= len(given)}
    return [None if not text else RIGHT if text in right else f"wrong: {text}" for text in said]


def _answers(values: dict[str, list[float]], found: Completions, answers: Sequence[Sequence[str | None]]) -> None:
    if "completion" not in found.columns and "extracted" not in found.columns:
        return
    for problem, given in zip(found.problems, answers, strict=True):
        if not problem.gold:
            continue
        overlaps = [token_overlap(a, problem.gold) for a in given]
        values.setdefault("em", []).append(float(np.mean([text_match(a, problem.gold) for a in given])))
        for name in ("f1", "precision", "recall"):
            values.setdefault(f"answer_{name}", []).append(float(np.mean([getattr(o, name) for o in overlaps])))


def _retrieval(values: dict[str, list[float]], problems: Sequence[Problem], k: int, notes: list[str]) -> None:
    measures = {
        f"retrieval_precision@{k}": retrieval_precision_at_k,
        f"retrieval_recall@{k}": retrieval_recall_at_k,
        f"retrieval_f1@{k}": retrieval_f1_at_k,
    }
    absent = 0
    for problem in problems:
        found = [r for r in problem.retrieved if r is not None]
        absent += len(problem.retrieved) - (len(found) if problem.supporting else 0)
        if found and problem.supporting:
            for name, function in measures.items():
                score = float(np.mean([function(r, problem.supporting, k) for r in found]))
                values.setdefault(name, []).append(score)
    if absent and f"retrieval_f1@{k}" in values:
        notes.append(
            f"{absent:,} completions have no retrieved or no supporting passages: left out of retrieval scores"
        )


def _interval(values: Sequence[float], seed: int) -> Interval:
    if all(v in (0.0, 1.0) for v in values):
        return wilson_interval(float(np.sum(values)), len(values))
    return bootstrap_interval(values, seed=seed)
