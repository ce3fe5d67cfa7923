"""The sequence of plans on the recorded run, as digests: do two versions of the code decide alike?

Rollouts are drawn from each prompt's recorded rate of the step, by a generator of its own for every step, so plans that
differ do not shift the draws of later steps. Only names that stay are used, so the script runs on old code too:

    PYTHONPATH=src python benchmarks/plan_digests.py [--calibrated]
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

import viprl

PREDICTORS = {"last_rate": viprl.LastRate, "discounted_beta": viprl.DiscountedBeta}
MODELS = {"rloo": viprl.RLOO, "dr_grpo": viprl.DrGRPO}
GROUP = 8


def group_sizes(predictor: object, model: object, visits: pd.DataFrame, *, guard: bool) -> Iterator[np.ndarray]:
    """The sizes of every step's plan."""
    allocator = viprl.RolloutAllocator(predictor, model, min_group_size=3, max_group_size=32, guard=guard)
    for step, rows in visits.groupby("step", sort=True):
        plan = allocator.allocate(rows["prompt_id"].tolist(), GROUP * len(rows))
        yield plan.group_sizes
        draws = np.random.default_rng(int(step)).random((len(rows), 32))
        rates = (rows["successes"] / rows["n_rollouts"]).to_numpy()
        allocator.observe(plan, [(draws[q, :n] < rates[q]).astype(float) for q, (_, n) in enumerate(plan)])


def digests(data: Path, *, calibrated: bool = False) -> dict[str, dict[str, object]]:
    """name -> digest of all group sizes, and the sum of squared sizes of every tenth step."""
    visits = pd.read_parquet(data / "oneshot_rlvr_visits_first250.parquet")
    prompts = pd.read_parquet(data / "oneshot_rlvr_prompts.parquet")
    predictors = dict(PREDICTORS)
    if calibrated:
        ids, texts = prompts["prompt_id"].tolist(), prompts["prompt_text"].tolist()
        predictors = {"calibrated": lambda: viprl.CalibratedPredictor(prompt_ids=ids, texts=texts)}
    found: dict[str, dict[str, object]] = {}
    for (p, predictor), (m, model), guard in itertools.product(predictors.items(), MODELS.items(), (True, False)):
        digest, squares = hashlib.sha256(), []
        for sizes in group_sizes(predictor(), model(), visits, guard=guard):
            digest.update(np.ascontiguousarray(sizes, dtype="<i8").tobytes())
            squares.append(int((sizes**2).sum()))
        name = f"{p}, {m}, {'guard' if guard else 'no guard'}"
        found[name] = {"plans": digest.hexdigest()[:16], "squares": squares[::10]}
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--calibrated", action="store_true")
    print(json.dumps(digests(Path(os.environ["VIPRL_DATA"]), calibrated=parser.parse_args().calibrated), indent=1))
