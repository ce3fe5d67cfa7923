"""Reward functions of the test world.

A question is ``<name> <k>``, an answer ``<name> <characters>``. It is right if its last character's code modulo 8 is
below k, so that a random model succeeds with probability near k/8. An answer with another prompt's name raises.
"""

from __future__ import annotations

from typing import Any


def is_right(response: str, ground_truth: str) -> float:
    """1.0 or 0.0 from the decoded answer and the ground truth ``<name> <k>``."""
    name, k = ground_truth.split()
    said, _, answer = response.partition(" ")
    if said != name:
        raise ValueError(f"the answer {response!r} was graded for the prompt {name!r}")
    return float(bool(answer) and ord(answer[-1]) % 8 < int(k))


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **unused: Any) -> Any:
    """verl's reward function; ``extra_info.fault`` makes it return NaN or None, or raise."""
    fault = (extra_info or {}).get("fault")
    score = is_right(solution_str, ground_truth)
    if fault == "raise" and score:
        raise RuntimeError("this reward function fails on purpose")
    if fault in ("nan", "none") and score:
        return float("nan") if fault == "nan" else None
    return score


def accuracy_and_format(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **unused: Any
) -> dict[str, float]:
    """The commonest reward: accuracy plus a part for the format, with the accuracy told apart."""
    right = is_right(solution_str, ground_truth)
    return {"score": right + 0.1 * (len(solution_str) % 3), "acc": right}
