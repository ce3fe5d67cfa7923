"""SmolLM2 from results/smollm_pools.npz: cross-fitted ratios, assumption tests, proxies."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from viprl.diagnose import diagnose
from viprl.gradient.pool import load_pools

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    pools = load_pools(RESULTS / "smollm_pools.npz")
    found = {}
    for aggregation in ("sum", "mean"):
        report = diagnose(pools, aggregation=aggregation)
        found[aggregation] = dataclasses.asdict(report)
        print(f"== {aggregation} over tokens\n{report.text}")
        for name, ratio in report.ratios.items():
            print(f"  {name:<20} {ratio.value:.3f} +- {1.96 * ratio.standard_error:.3f}")
        print("  proxies:", {n: round(v, 2) for n, v in report.proxy_correlation.items()})
    (RESULTS / "smollm_table.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
