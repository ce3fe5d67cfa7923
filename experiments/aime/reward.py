"""Reward of a solution: +1 if math-verify finds its last "Answer: ..." equal to the gold answer, else -1.

verl grades in threads, where math-verify's signal timeouts do not work; ``MathGrader`` runs it in a process of its own
with a time limit per answer.
"""

from __future__ import annotations

import threading
from typing import Any

from viprl.evaluation.math_grader import MathGrader, final_answer

_GRADER = MathGrader(seconds=5.0)
_LOCK = threading.Lock()


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **unused: Any
) -> dict[str, Any]:
    """verl's custom reward function.

    Args:
        data_source: name of the data set, written beside every validation answer.
        solution_str: the decoded response; ``viprl.grade_own_tokens`` keeps tools' tokens out of it.
        ground_truth: the gold answer.

    Returns:
        score in {-1, 1} (the paper's rewards), acc in {0, 1}, pred (the answer, "" where there is none) and task; a
        score of NaN, a missing reward, where the gold answer cannot be read.
    """
    answer = final_answer(solution_str)
    with _LOCK:
        (right,) = _GRADER.grade([answer], [str(ground_truth)])
    if right is None:
        return {"score": float("nan"), "acc": 0.0, "pred": answer or "", "task": data_source}
    return {"score": 2.0 * right - 1.0, "acc": right, "pred": answer or "", "task": data_source}
