"""The predictors that the experiments on the arithmetic model compare, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import viprl


def _gp(prompts: list[str]) -> Any:
    return viprl.GaussianProcessPredictor(digit_features(prompts), prompt_ids=prompts)


def _ridge(prompts: list[str]) -> Any:
    return viprl.Ridge(digit_features(prompts), prompt_ids=prompts)


def _default(prompts: list[str]) -> Any:
    return viprl.CalibratedPredictor(None, prompt_ids=prompts, texts=prompts)


PREDICTORS: dict[str, Callable[[list[str]], Any]] = {
    "gp": _gp,  # the paper's Algorithm 1
    "ridge": _ridge,
    "moving": viprl.MovingAverage,
    "beta": viprl.DiscountedBeta,
    "default": _default,
}


def digit_features(prompts: list[str]) -> np.ndarray:
    """(N, 62) one-hot digits by place of both terms and their lengths: MiniLM says nothing about sums, these do."""
    rows = np.zeros((len(prompts), 62), dtype=np.float32)
    for i, prompt in enumerate(prompts):
        for term, text in enumerate(prompt.rstrip("=").split("+")):
            for place, digit in enumerate(reversed(text)):
                rows[i, term * 30 + place * 10 + int(digit)] = 1.0
            rows[i, 60 + term] = len(text) / 3
    return rows
