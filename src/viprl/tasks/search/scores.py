"""Scores of search rollouts, with both readings of the paper's F1@5 and Precision@5.

The paper gives no formula for F1@5 and Precision@5 in its Table 2. Two readings exist, so both are computed, under
names that cannot be confused:

- ``answer_f1``, ``answer_precision``, ``answer_recall``: token overlap of the *answer* with the closest gold answer,
  while the retriever returns k passages a query (what FlashRAG, the evaluator of the work that the paper follows,
  computes);
- ``retrieval_f1@k``, ``retrieval_precision@k``, ``retrieval_recall@k``: the *passages* against the supporting ones.
  Only for data sets that mark supporting passages (MuSiQue, HotpotQA; not Bamboogle).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from viprl.evaluation.answers import exact_match, token_overlap
from viprl.evaluation.retrieval import retrieval_f1_at_k, retrieval_precision_at_k, retrieval_recall_at_k
from viprl.tasks.search.agent import Rollout
from viprl.tasks.search.passages import Hit
from viprl.tasks.search.rewards import outcome


def score_rollout(rollout: Rollout, *, k: int = 5) -> dict[str, float]:
    """The scores of one rollout, each in [0, 1] but for the counts ``searches`` and ``own_tokens``."""
    question = rollout.question
    result = outcome(rollout.messages)
    overlap = token_overlap(result.answer, question.answers)
    scores = {
        "em": exact_match(result.answer, question.answers),
        "answer_f1": overlap.f1,
        "answer_precision": overlap.precision,
        "answer_recall": overlap.recall,
        "answered": float(result.answer is not None),
        "well_formed": float(result.well_formed),
        "searches": float(rollout.session.events["searches"]),
        "own_tokens": float(sum(rollout.mask)),
    }
    if question.supporting:
        scores |= retrieval_scores([r.hits for r in rollout.session.records], question.supporting, k)
    return scores


def retrieval_scores(calls: Sequence[Sequence[Hit]], supporting: Sequence[str], k: int) -> dict[str, float]:
    """Passages of one rollout against the supporting ones; a rollout without searches scores 0."""
    ranked = merged_ranking(calls)
    return {
        f"retrieval_f1@{k}": retrieval_f1_at_k(ranked, supporting, k),
        f"retrieval_precision@{k}": retrieval_precision_at_k(ranked, supporting, k),
        f"retrieval_recall@{k}": retrieval_recall_at_k(ranked, supporting, k),
        "retrieval_recall_all": len(set(ranked) & set(supporting)) / len(set(supporting)),
    }


def merged_ranking(calls: Sequence[Sequence[Hit]]) -> list[str]:
    """One ranking of the distinct passages of several searches: the first of each search, then the second of each, ...

    With a single search this is that search's own ranking, so @k then has its usual meaning.
    """
    ranked: dict[str, Any] = {}
    for rank in range(max(map(len, calls), default=0)):
        for hits in calls:
            if rank < len(hits):
                ranked.setdefault(hits[rank].passage.id)
    return list(ranked)
