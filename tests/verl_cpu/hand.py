"""Advantages from decoded text alone, written without the library: what the recorded rows must agree with."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from verl_cpu.rewards import is_right

Row = dict[str, Any]


def question_of(row: Row) -> str:
    """``<name> <k>`` from the decoded prompt ``u:<name> <k>a:``."""
    return str(row["prompt"]).split("u:", 1)[1].rsplit("a:", 1)[0]


def groups_of(rows: list[Row]) -> dict[str, list[Row]]:
    """Real rows by uid; every row's answer must start with its own prompt's name."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if not row["padding"]:
            groups[row["key"].rsplit("_", 2)[0]].append(row)
    for members in groups.values():
        questions = {question_of(row) for row in members}
        assert len(questions) == 1, f"a group mixes prompts: {questions}"
        name = questions.pop().split()[0]
        assert all(row["response"].startswith(f"{name} ") for row in members), [row["response"] for row in members]
    return dict(groups)


def score_of(row: Row) -> float:
    """The reward by the decoded text, NaN where the run reported a missing one."""
    return math.nan if math.isnan(row["score"]) else is_right(row["response"], question_of(row))


def expected_advantages(rows: list[Row], estimator: str) -> dict[str, float]:
    """key -> advantage with equal prompt weights, by the definitions."""
    groups = groups_of(rows)
    scores = {row["key"]: score_of(row) for members in groups.values() for row in members}
    present = {
        uid: [scores[row["key"]] for row in members if not math.isnan(scores[row["key"]])]
        for uid, members in groups.items()
    }
    rollouts = sum(len(values) for values in present.values())
    prompts = sum(bool(values) for values in present.values())
    result = {row["key"]: 0.0 for row in rows if row["padding"]}
    for uid, members in groups.items():
        values = present[uid]
        n = len(values)
        for row in members:
            reward = scores[row["key"]]
            if math.isnan(reward) or n < 2:
                result[row["key"]] = 0.0
                continue
            baseline = sum(values) / n if estimator == "dr_grpo" else (sum(values) - reward) / (n - 1)
            result[row["key"]] = (reward - baseline) * rollouts / (prompts * n)
    return result


def weights_of(rows: list[Row], estimator: str) -> dict[str, float]:
    """question -> the factor that all advantages of its group carry beyond the definition; dead groups show none."""
    expected, weights = expected_advantages(rows, estimator), {}
    for members in groups_of(rows).values():
        ratios = [
            value / expected[row["key"]]
            for row in members
            for value, mask in zip(row["advantages"], row["response_mask"], strict=True)
            if mask and expected[row["key"]]
        ]
        if ratios:
            assert max(ratios) - min(ratios) < 1e-5, ratios
            weights[question_of(members[0])] = ratios[0]
    return weights


def advantage_error(rows: list[Row], estimator: str) -> float:
    """Largest difference between a recorded advantage (every token of it) and the hand computation."""
    expected = expected_advantages(rows, estimator)
    return max(
        abs(value - expected[row["key"]] * mask)
        for row in rows
        for value, mask in zip(row["advantages"], row["response_mask"], strict=True)
    )


def std_advantage_error(rows: list[Row], epsilon: float = 1e-6) -> float:
    """The same for std-normalised GRPO on whatever the run scored, prompts weighing the same."""
    groups, worst = groups_of(rows), 0.0
    for members in groups.values():
        n = len(members)
        scores = [row["score"] for row in members]
        mean = sum(scores) / n
        spread = math.sqrt(sum((score - mean) ** 2 for score in scores) / (n - 1))
        for row in members:
            dead = spread < 1e-6
            a = 0.0 if dead else (row["score"] - mean) / (spread + epsilon) * len(rows) / (len(groups) * n)
            for value, mask in zip(row["advantages"], row["response_mask"], strict=True):
                worst = max(worst, abs(value - a * mask))
    return worst


def mean_squared_norm(steps: list[list[Row]], keep: float = 0.95) -> float:
    """What the learned variance's overall level must be: the discounted mean over steps, groups and outcomes of the
    mean stand-in for a rollout's squared gradient norm, where c rollouts of one kind count c / (1 + (c - 1) / 2)."""
    weight = total = 0.0
    for rows in steps:
        weight, total = keep * weight, keep * total
        for members in groups_of(rows).values():
            kinds: dict[float, list[float]] = defaultdict(list)
            for row in members:
                logs = [log for log, mask in zip(row["old_log_probs"], row["response_mask"], strict=True) if mask]
                kinds[score_of(row)].append(-sum(logs) / len(logs) ** 2)
            for norms in kinds.values():
                share = len(norms) / (1 + (len(norms) - 1) / 2)
                weight, total = weight + share, total + share * sum(norms) / len(norms)
    return total / weight


def log_prob_error(rows: list[Row]) -> float:
    """Largest difference between the rollout's and the actor's log-probability of a token."""
    return max(
        abs(a - b)
        for row in rows
        if not row["padding"]
        for a, b, mask in zip(row["old_log_probs"], row["rollout_log_probs"], row["response_mask"], strict=True)
        if mask
    )


def by_step(rows: list[Row]) -> dict[int, list[Row]]:
    steps: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        steps[row["step"]].append(row)
    return dict(steps)


def sizes_of(rows: list[Row]) -> dict[str, list[int]]:
    """question -> sizes of its groups in this step."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for members in groups_of(rows).values():
        sizes[question_of(members[0])].append(len(members))
    return {question: sorted(values) for question, values in sizes.items()}
