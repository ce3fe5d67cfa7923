"""All measures of a set of completions, each with a 95% interval over problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from viprl.errors import InvalidInputError
from viprl.evaluation.answers import exact_match, normalize_answer, token_overlap
from viprl.evaluation.completions import Problem
from viprl.evaluation.intervals import Interval, bootstrap_interval, wilson_interval
from viprl.evaluation.retrieval import retrieval_f1_at_k, retrieval_precision_at_k, retrieval_recall_at_k
from viprl.evaluation.sampling import maj_at_k, mean_at_k, pass_at_k

Extract = Callable[[str], str | None]
Grade = Callable[[Sequence[str | None], Sequence[str]], Sequence[float | None]]

RIGHT = "right"  # stands for every answer that is graded correct, so that spellings of it vote together


@dataclass
class Evaluation:
    """What was measured.

    Attributes:
        measures: name -> estimate with its interval, in [0, 1].
        problems, completions: how many.
        notes: what was left out, in sentences.
    """

    measures: dict[str, Interval]
    problems: int
    completions: int
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The evaluation as text."""
        width = max(map(len, self.measures), default=0)
        head = f"{self.problems:,} problems, {self.completions:,} completions; 95% intervals over problems"
        rows = [f"{name:<{width}}  {v.estimate:.4f}  [{v.low:.4f}, {v.high:.4f}]" for name, v in self.measures.items()]
        return [head, *rows, *(f"note: {note}" for note in self.notes)]


def measure(
    problems: Sequence[Problem],
    *,
    ks: Sequence[int] = (),
    extract: Extract | None = None,
    grade: Grade | None = None,
    retrieval_k: int = 5,
    seed: int = 0,
) -> Evaluation:
    """Pass@k, Mean@k, Maj@k, EM, token F1/precision/recall and retrieval scores, as far as the data allow.

    Args:
        problems: see ``read_completions``.
        ks: for Pass, Mean and Maj; by default 1 and the number of completions that every problem has.
        extract: completion -> its final answer, None without one; by default the completion itself.
        grade: (answers, gold answers) -> correctness, for problems whose file does not say; by default EM.
        retrieval_k: cut of the retrieval scores.
        seed: of the bootstrap and of sampled votes.

    Raises:
        InvalidInputError: a k larger than a problem's number of completions, or nothing to measure.
    """
    take = extract or (lambda text: text)
    answers = [[None if c is None else take(c) for c in p.completions] for p in problems]
    notes: list[str] = []
    correct = [_graded(p, a, grade) for p, a in zip(problems, answers, strict=True)]
    values: dict[str, list[float]] = {}
    judged = [i for i, marks in enumerate(correct) if marks is not None]
    if judged:
        _sampling(values, problems, answers, correct, judged, ks, notes, seed)
    _answers(values, problems, answers)
    _retrieval(values, problems, retrieval_k)
    if not values:
        raise InvalidInputError("completions need a gold answer, a correctness or retrieved passages, but have none")
    if 0 < len(judged) < len(problems):
        notes.append(f"{len(problems) - len(judged)} problems could not be judged and are left out of Pass, Mean, Maj")
    measures = {name: _interval(numbers, seed) for name, numbers in values.items()}
    return Evaluation(measures, len(problems), sum(len(p.completions) for p in problems), notes)


def _graded(problem: Problem, answers: Sequence[str | None], grade: Grade | None) -> list[float] | None:
    """Correctness of each completion; None where it is unknown for one of them."""
    if all(mark is not None for mark in problem.correct):
        return [float(mark) for mark in problem.correct if mark is not None]
    if not problem.gold:
        return None
    if grade is None:
        return [exact_match(answer, problem.gold) for answer in answers]
    marks = [0.0] * len(answers)
    for gold in problem.gold:
        graded = grade(answers, [gold] * len(answers))
        if any(mark is None for mark in graded):
            return None
        marks = [max(old, float(new or 0.0)) for old, new in zip(marks, graded, strict=True)]
    return marks


def _sampling(
    values: dict[str, list[float]],
    problems: Sequence[Problem],
    answers: Sequence[Sequence[str | None]],
    correct: Sequence[list[float] | None],
    judged: Sequence[int],
    ks: Sequence[int],
    notes: list[str],
    seed: int,
) -> None:
    fewest = min(len(problems[i].completions) for i in judged)
    for k in ks or sorted({1, fewest}):
        if k > fewest:
            raise InvalidInputError(
                f"k <= n must hold for every problem, but got (k={k}, n={fewest}): a problem has {fewest} completions"
            )
        marks = [np.asarray(correct[i], dtype=np.float64) for i in judged]
        hits = [(m >= 1.0).sum() for m in marks]
        sizes = [len(m) for m in marks]
        values[f"pass@{k}"] = np.atleast_1d(pass_at_k(sizes, hits, k)).tolist()
        values[f"mean@{k}"] = [mean_at_k(m.tolist(), k) for m in marks]
        if k > 1:
            values[f"maj@{k}"] = [
                maj_at_k(_votes(answers[i], m), RIGHT, k, seed=seed) for i, m in zip(judged, marks, strict=True)
            ]
    if any(0 < mark < 1 for i in judged for mark in correct[i] or ()):
        notes.append("some completions are partly correct: Pass and Maj count only fully correct ones")


def _votes(answers: Sequence[str | None], marks: NDArray[np.float64]) -> list[str | None]:
    """What each completion votes for: all right answers the same, wrong ones their normalised text, blanks nothing."""
    votes: list[str | None] = []
    for answer, mark in zip(answers, marks.tolist(), strict=True):
        said = "" if answer is None else normalize_answer(answer)
        votes.append(RIGHT if mark >= 1 else f"wrong: {said}" if said else None)
    return votes


def _answers(
    values: dict[str, list[float]], problems: Sequence[Problem], answers: Sequence[Sequence[str | None]]
) -> None:
    for problem, given in zip(problems, answers, strict=True):
        if not problem.gold or all(c is None for c in problem.completions):
            continue
        overlaps = [token_overlap(a, problem.gold) for a in given]
        values.setdefault("em", []).append(float(np.mean([exact_match(a, problem.gold) for a in given])))
        for name in ("f1", "precision", "recall"):
            values.setdefault(f"answer_{name}", []).append(float(np.mean([getattr(o, name) for o in overlaps])))


def _retrieval(values: dict[str, list[float]], problems: Sequence[Problem], k: int) -> None:
    measures = {
        f"retrieval_precision@{k}": retrieval_precision_at_k,
        f"retrieval_recall@{k}": retrieval_recall_at_k,
        f"retrieval_f1@{k}": retrieval_f1_at_k,
    }
    for problem in problems:
        found = [r for r in problem.retrieved if r is not None]
        if found and problem.supporting:
            for name, function in measures.items():
                score = float(np.mean([function(r, problem.supporting, k) for r in found]))
                values.setdefault(name, []).append(score)


def _interval(values: Sequence[float], seed: int) -> Interval:
    if all(v in (0.0, 1.0) for v in values):
        return wilson_interval(float(np.sum(values)), len(values))
    return bootstrap_interval(values, seed=seed)
