"""The table of results/runs.jsonl: ``python table.py``. Differences with uniform groups are paired by seed."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    runs = [json.loads(line) for line in (RESULTS / "runs.jsonl").read_text().splitlines()]
    by_cell: dict[tuple[str, int], dict[int, dict]] = defaultdict(dict)
    for run in runs:
        by_cell[run["cell"], run["steps"]][run["seed"]] = run
    print("| cell | seeds | mean@16 | pass@8 | against uniform (s.e.) | late prediction error | overhead |")
    print("|---|---|---|---|---|---|---|")
    for (cell, steps), own in sorted(by_cell.items(), key=lambda item: (item[0][0].split("-")[-1], item[0][0])):
        final = np.array([r["curve"][-1]["mean"] for r in own.values()])
        passed = np.array([r["curve"][-1]["pass@8"] for r in own.values()])
        uniform = by_cell.get((f"none-uniform-paper-equal-{cell.split('-')[-1]}", steps), {})
        both = sorted(set(own) & set(uniform))
        gaps = np.array([own[s]["curve"][-1]["mean"] - uniform[s]["curve"][-1]["mean"] for s in both])
        error = gaps.std(ddof=1) / np.sqrt(len(gaps)) if len(gaps) > 1 else float("nan")
        gap = f"{gaps.mean():+.4f} ({error:.4f})" if len(gaps) else "-"
        late = np.mean([np.mean(r["prediction_error"][-20:]) for r in own.values()])
        spent = {k: sum(r["seconds"][k] for r in own.values()) for k in ("allocate", "rollouts", "update", "observe")}
        overhead = (spent["allocate"] + spent["observe"]) / (spent["rollouts"] + spent["update"])
        print(
            f"| {cell} | {len(own)} | {final.mean():.4f} | {passed.mean():.4f} | {gap} | {late:.3f} | {overhead:.1%} |"
        )


if __name__ == "__main__":
    main()
