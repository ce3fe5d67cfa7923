"""Measures of what a trained model can do, each with its definition and its interval."""

from viprl.evaluation.answers import (
    TokenOverlap,
    exact_match,
    normalize_answer,
    token_f1,
    token_overlap,
    token_precision,
)
from viprl.evaluation.intervals import Interval, bootstrap_interval, paired_bootstrap_interval, wilson_interval
from viprl.evaluation.retrieval import retrieval_f1_at_k, retrieval_precision_at_k, retrieval_recall_at_k
from viprl.evaluation.sampling import maj_at_k, mean_at_k, pass_at_k

__all__ = [
    "Interval",
    "TokenOverlap",
    "bootstrap_interval",
    "exact_match",
    "maj_at_k",
    "mean_at_k",
    "normalize_answer",
    "paired_bootstrap_interval",
    "pass_at_k",
    "retrieval_f1_at_k",
    "retrieval_precision_at_k",
    "retrieval_recall_at_k",
    "token_f1",
    "token_overlap",
    "token_precision",
    "wilson_interval",
]
