"""Predictors by the names that configurations of both trainers use, with what each of them reads.

Notation: N prompts, D embedding size. ``prefix`` stands before the names of options in errors ("viprl." for verl).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viprl import prediction
from viprl.errors import ConfigurationError

# name in a configuration -> class of viprl.prediction
PREDICTORS = {
    "calibrated": "CalibratedPredictor",
    "discounted_beta": "DiscountedBeta",
    "last_rate": "LastRate",
    "global_mean": "GlobalMean",
    "moving_average": "MovingAverage",
    "ridge": "Ridge",
    "gaussian_process": "GaussianProcessPredictor",
    "reward_variance": "RewardVariancePredictor",
}
LEARNING = ("calibrated", "reward_variance")  # read texts, embeddings and side information where there are any
NEEDS_EMBEDDINGS = ("gaussian_process", "ridge")
TAKES_NEW_PROMPTS = tuple(name for name in PREDICTORS if name not in NEEDS_EMBEDDINGS)


def check_predictor(name: str, *, embedding_model: str, side_information: Sequence[str], prefix: str = "") -> None:
    """Check a predictor's name against the other options.

    Raises:
        ConfigurationError: an unknown name, embeddings missing, or side information that would not be read.
    """
    if name not in PREDICTORS:
        raise ConfigurationError(f"{prefix}predictor must be one of {sorted(PREDICTORS)}, but got {name!r}")
    if name in NEEDS_EMBEDDINGS and embedding_model == "none":
        raise ConfigurationError(
            f"{prefix}predictor={name!r} needs embeddings, but got {prefix}embedding_model='none'; use 'packaged' or a "
            "model"
        )
    if side_information and name not in LEARNING:
        raise ConfigurationError(
            f"{prefix}side_information is read by {sorted(LEARNING)} alone, but got {prefix}predictor={name!r}"
        )


def build_predictor(
    name: str,
    prompt_ids: Sequence[str],
    texts: Callable[[], Sequence[str]],
    *,
    embedding_model: str = "none",
    embedding_cache: str | None = None,
    side_information: Mapping[str, NDArray[np.float64]] | None = None,
    prefix: str = "",
) -> Any:
    """The predictor of that name over a data set's prompts; embeddings are computed once and cached.

    Args:
        name: a key of ``PREDICTORS``.
        prompt_ids: N ids.
        texts: gives the N prompts' texts; called only where the predictor reads them.
        embedding_model: "none", or as in ``viprl.embeddings.embed``.
        embedding_cache: folder that keeps embeddings between runs.
        side_information: column -> (N,) floats, NaN where missing.
        prefix: before the names of options in errors.

    Raises:
        ConfigurationError: see ``check_predictor``.
    """
    side = side_information or {}
    check_predictor(name, embedding_model=embedding_model, side_information=list(side), prefix=prefix)
    predictor = predictor_class(name)
    if name not in LEARNING and name not in NEEDS_EMBEDDINGS:
        return predictor(prompt_ids)
    words = texts()
    embeddings = _embeddings(words, embedding_model, embedding_cache)
    if name in NEEDS_EMBEDDINGS:
        return predictor(embeddings, prompt_ids=prompt_ids)
    return predictor(embeddings, prompt_ids=prompt_ids, texts=words, side_information=side or None)


def predictor_class(name: str) -> Any:
    """The class behind a key of ``PREDICTORS``."""
    return getattr(prediction, PREDICTORS[name])


def _embeddings(texts: Sequence[str], model: str, cache: str | None) -> NDArray[np.float32] | None:
    """(N, D), or None without a model."""
    if model == "none":
        return None
    from viprl.embeddings import embed

    vectors: NDArray[np.float32] = embed(texts, model=model, cache_dir=cache)
    return vectors
