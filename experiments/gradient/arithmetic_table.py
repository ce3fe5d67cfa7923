"""Predicted and measured variance ratios on the arithmetic model: ``python arithmetic_table.py [POINT...]``.

A POINT is WARM_START_SEED_STEP, as arithmetic_history.py names its files. Predictor and learned variance see the
history alone; the truth is the pool of fresh rollouts. Two oracles bound what perfect knowledge would give: in sample
(group sizes and variance from the same pool: too good) and cross-fitted (group sizes from each prompt's 32 rollouts of
one half, taken at face value, variance from the other: too bad). Shares are of the gain of the first.

Success rates are DiscountedBeta's, except where a row names the default predictor. "learned" reads gradient norms of
rollouts with an advantage; "learned from ..." reads a proxy that needs no backward pass, of all rollouts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rows import measured_rows

import viprl
from viprl.gradient.comparison import oracle_sizes, pool_constants, ratio_and_error, ratio_difference
from viprl.gradient.moments import variance_curve
from viprl.gradient.pool import PromptPool, load_pools
from viprl.variance import RLOO, OutcomeMoments

RESULTS = Path(__file__).parent / "results"
LOW, SEEDS = 3, 8
PROXIES = ("logit_norm", "chosen", "surprisal", "entropy", "length")
SHARPER = "learned, default predictor"


def replay(name: str, model: OutcomeMoments, predictor: Any, source: str = "squared_norms") -> Any:
    """Predictor and model after the recorded history; ``source`` stands for a rollout's squared norm."""
    with np.load(RESULTS / f"{name}_history.npz") as data:
        steps = [data[key] for key in ("prompt_ids", "group_sizes", "rewards", source)]
    for ids, sizes, rewards, norms in zip(*steps, strict=True):
        own = ids.tolist()
        prediction = predictor.predict(own)
        model.learn(own, prediction, sizes, rewards, norms)
        counts = np.add.reduceat(rewards, np.concatenate([[0], np.cumsum(sizes)[:-1]]))
        predictor.observe(own, counts, sizes)
    return predictor


def learners(name: str, ids: list[str]) -> dict[str, tuple[OutcomeMoments, viprl.Prediction]]:
    """Learned model and predicted success rates after a point's history, by what the model was taught with."""
    found = {}
    for label, source in (("learned", "squared_norms"), *((f"learned from {p}", f"proxy_{p}") for p in PROXIES)):
        model = OutcomeMoments()
        found[label] = model, replay(name, model, viprl.DiscountedBeta(ids), source).predict(ids)
    # the default predictor is sharper, and so moves more rollouts
    model, text = OutcomeMoments(), viprl.CalibratedPredictor(None, prompt_ids=ids, texts=ids)
    found[SHARPER] = model, replay(name, model, text).predict(ids)
    return found


def allocations(ids: list[str], taught: dict, budget: int, high: int) -> dict[str, np.ndarray]:
    """Group sizes (B,) by policy."""
    sizes = {"paper": viprl.solve_allocation(RLOO(), taught["learned"][1], budget, LOW, high)}
    for label, (model, rates) in taught.items():
        if label == SHARPER:
            sizes["paper, default predictor"] = viprl.solve_allocation(RLOO(), rates, budget, LOW, high)
        sizes[label] = viprl.solve_allocation(model.bind(ids), rates, budget, LOW, high)
        if label == "learned":  # without the test of trust
            sizes["learned, always"] = oracle_sizes(*model.moments(rates, ids), budget, LOW, high)
    return sizes


def evaluate(name: str, pools: list[PromptPool], taught: dict, mean_size: int) -> dict:
    """All policies at one point; ratios with jackknife errors over prompts."""
    ids = [p.prompt_id for p in pools]
    model, prediction = taught["learned"]
    budget, high = mean_size * len(ids), 4 * mean_size
    uniform = np.full(len(ids), mean_size)
    sizes = allocations(ids, taught, budget, high)
    v1, v2 = pool_constants(pools)
    values = {n: variance_curve(v1, v2, s) for n, s in sizes.items()}
    reference = variance_curve(v1, v2, uniform)
    known = variance_curve(v1, v2, oracle_sizes(v1, v2, budget, LOW, high))
    promised = {
        n: float(m.variance(prediction, sizes[n]).sum() / m.variance(prediction, uniform).sum())
        for n, m in (("paper", RLOO()), ("learned", model.bind(ids)))
    }
    rows = measured_rows(values, reference, known, promised)
    oracles = {
        "oracle, cross-fitted": cross_fitted_oracle(pools, budget, high, uniform),
        "oracle, in sample": (known, reference),
    }
    for label, pair in oracles.items():
        ratio, error = ratio_and_error(*pair)
        rows[label] = {"measured": ratio, "error": error}
    differences = {
        n: ratio_difference(value, values["paper"], reference) for n, value in values.items() if n.startswith("learned")
    }
    p = np.array([x.mean_reward for x in pools])
    return {
        "point": name, "mean_size": mean_size, "prompts": len(ids), "success": float(p.mean()),
        "mixed": float(np.mean((p > 0) & (p < 1))), "trust": [model.trust.blend, model.trust.exponent],
        "minus_paper": differences, "rows": rows, "metrics": model.metrics(),
    }  # fmt: skip


def cross_fitted_oracle(pools: list[PromptPool], budget: int, high: int, uniform: np.ndarray):
    """(B,) variances and uniform variances, averaged over random halves of the pools and both ways round."""
    best, reference = np.zeros(len(pools)), np.zeros(len(pools))
    for seed in range(SEEDS):
        halves = [p.split(seed=seed * 10_000 + q) for q, p in enumerate(pools)]
        constants = [pool_constants([h[side] for h in halves]) for side in (0, 1)]
        for past, fresh in ((0, 1), (1, 0)):
            sizes = oracle_sizes(*constants[past], budget, LOW, high)
            best += variance_curve(*constants[fresh], sizes)
            reference += variance_curve(*constants[fresh], uniform)
    return best / (2 * SEEDS), reference / (2 * SEEDS)


def main(names: list[str]) -> None:
    names = names or sorted(p.name[: -len("_truth.npz")] for p in RESULTS.glob("arithmetic_*_truth.npz"))
    found = []
    for name in names:
        pools = load_pools(RESULTS / f"{name}_truth.npz")
        taught = learners(name, [p.prompt_id for p in pools])
        found += [evaluate(name, pools, taught, size) for size in (8, 16)]
    for result in found:
        print(
            f"{result['point']} n={result['mean_size']} success {result['success']:.2f} mixed {result['mixed']:.2f} "
            f"trust {result['trust']} learned-paper %.3f +- %.3f (p %.2g)" % tuple(result["minus_paper"]["learned"])
        )
        for name, row in result["rows"].items():
            promise = "" if row.get("predicted") is None else f"predicted {row['predicted']:.3f}"
            share = "" if "share" not in row else f"share {row['share']:+.2f} +- {1.96 * row['share_error']:.2f}"
            print(f"  {name:<22} {row['measured']:.3f} +- {1.96 * row['error']:.3f}  {promise:<16} {share}")
    (RESULTS / "arithmetic_table.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
