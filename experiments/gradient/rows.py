"""The rows of a table of measured variance ratios."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from viprl.gradient.comparison import gain_share, ratio_and_error


def measured_rows(
    values: Mapping[str, np.ndarray], reference: np.ndarray, best: np.ndarray, promised: Mapping[str, float]
) -> dict[str, dict]:
    """Ratio to uniform and share of the best allocation's gain by policy, with jackknife errors over prompts.

    Args:
        values: policy -> (B,) measured variances.
        reference, best: (B,) of uniform groups and of the allocation whose gain is shared out.
        promised: ratios by a policy's own model, where it has one.
    """
    rows = {}
    for name, value in values.items():
        ratio, error = ratio_and_error(value, reference)
        share, share_error = gain_share(value, best, reference)
        rows[name] = {
            "predicted": promised.get(name),
            "measured": ratio,
            "error": error,
            "share": share,
            "share_error": share_error,
        }
    return rows
