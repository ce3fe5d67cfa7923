"""SmolLM2 from results/smollm_pools.npz: predicted and measured ratios as in arithmetic_table.py, and the diagnosis.

Each prompt's rollouts are split into random halves; predictions come from one half and the truth from the other, both
ways round, averaged over SEEDS splits. "oracle, in sample" knows the half that it is measured on (too good), "oracle,
cross-fitted" takes each prompt's own V1 and V2 from the past half at face value (too bad).
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
from rows import measured_rows

import viprl
from viprl.diagnose import diagnose
from viprl.gradient.comparison import oracle_sizes, pool_constants, ratio_difference
from viprl.gradient.learned import learn_from_pools, posterior
from viprl.gradient.moments import variance_curve
from viprl.gradient.pool import PromptPool, load_pools
from viprl.variance import RLOO

RESULTS = Path(__file__).parent / "results"
LOW, SEEDS = 3, 8
PROXIES = ("logit_norm", "surprisal", "entropy", "length")
ORACLE = "oracle, in sample"


def allocations(past: list[PromptPool], aggregation: str, mean: int) -> dict[str, tuple[np.ndarray, float]]:
    """Group sizes from past rollouts and the ratio that each rule's own model promises."""
    ids, prediction = [p.prompt_id for p in past], posterior(past)
    budget, bounds = mean * len(past), (LOW, 4 * mean)
    uniform = np.full(len(past), mean)
    models = {"paper": RLOO(), "learned": learn_from_pools(past, aggregation=aggregation).bind(ids)}
    for proxy in PROXIES:
        stand_ins = [PromptPool(p.prompt_id, p.rewards, np.diag(p.proxies[proxy]), p.lengths) for p in past]
        models[f"learned from {proxy}"] = learn_from_pools(stand_ins, aggregation=aggregation).bind(ids)
    found = {}
    for name, model in models.items():
        sizes = viprl.solve_allocation(model, prediction, budget, *bounds)
        promised = model.variance(prediction, sizes).sum() / model.variance(prediction, uniform).sum()
        found[name] = (sizes, float(promised))
    own = oracle_sizes(*pool_constants(past, aggregation), budget, *bounds)
    return {**found, "oracle, cross-fitted": (own, float("nan"))}


def evaluate(pools: list[PromptPool], aggregation: str, mean: int) -> dict:
    """Measured ratios with jackknife errors over prompts."""
    reference, values, promised = np.zeros(len(pools)), {}, {}
    for seed in range(SEEDS):
        halves = [p.split(seed=seed * 10_000 + q) for q, p in enumerate(pools)]
        for past, fresh in ((0, 1), (1, 0)):
            constants = pool_constants([h[fresh] for h in halves], aggregation)
            chosen = allocations([h[past] for h in halves], aggregation, mean)
            best = oracle_sizes(*constants, mean * len(pools), LOW, 4 * mean)
            chosen[ORACLE] = (best, float("nan"))
            reference += variance_curve(*constants, np.full(len(pools), mean))
            for name, (sizes, promise) in chosen.items():
                values[name] = values.get(name, 0.0) + variance_curve(*constants, sizes)
                promised.setdefault(name, []).append(promise)
    means = {name: float(np.mean(own)) for name, own in promised.items() if not np.isnan(own).any()}
    rows = measured_rows(values, reference, values[ORACLE], means)
    for name, value in values.items():
        rows[name]["minus_paper"] = ratio_difference(value, values["paper"], reference)
    return {"aggregation": aggregation, "mean_size": mean, "prompts": len(pools), "rows": rows}


def main() -> None:
    pools = [p for p in load_pools(RESULTS / "smollm_pools.npz") if p.mixed]
    found = []
    for aggregation in ("sum", "mean"):
        report = diagnose(pools, aggregation=aggregation)
        print(f"== {aggregation} over tokens\n{report.text}")
        print("  correlation of proxies:", {n: round(v, 2) for n, v in report.proxy_correlation.items()})
        results = [evaluate(pools, aggregation, mean) for mean in (8, 16)]
        for result in results:
            print(f"-- {result['prompts']} prompts, {result['mean_size']} rollouts a prompt")
            for name, row in result["rows"].items():
                promise = "" if row["predicted"] is None else f"predicted {row['predicted']:.3f}"
                gap, gap_error, _ = row["minus_paper"]
                print(
                    f"  {name:<24} {row['measured']:.3f} +- {1.96 * row['error']:.3f}  {promise:<16} "
                    f"share {row['share']:+.2f} +- {1.96 * row['share_error']:.2f}  "
                    f"minus paper {gap:+.3f} +- {1.96 * gap_error:.3f}"
                )
        found.append({"diagnosis": dataclasses.asdict(report), "tables": results})
    (RESULTS / "smollm_table.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
