"""Does adaptive allocation make the arithmetic model learn faster? Trains every cell of the comparison.

Cells: estimator (RLOO, Dr. GRPO) x policy (VIP, uniform, VIP with learned variances) x seed, at equal rollouts, data
order and starting model.
Runs seed by seed, so that whatever is there can be compared in pairs; a cell with a result is not run again.

    python experiments/learning/run.py --work runs/learning            # about 2 minutes a cell on an idle core
    python experiments/learning/summarise.py
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

from viprl.reports.progress import PlainProgress
from viprl.training import TrainConfig, run_job
from viprl.training.callbacks import MetricsFile
from viprl.training.report.collect import overall_ratio, read_run, variance_ratios
from viprl.training.run import runs_of

HERE = Path(__file__).resolve().parent
ESTIMATORS = ("rloo", "dr_grpo")
POLICIES = ("vip", "uniform", "learned")


def cell_config(estimator: str, policy: str, seed: int, args: argparse.Namespace) -> TrainConfig:
    """The demo's settings, but for fewer held-out rollouts."""
    return TrainConfig(
        task={"name": "arithmetic", "train_size": 512, "test_size": 256},
        output=str(args.work / f"{estimator}-{policy}-{seed}"),
        overwrite=True,
        policy="vip" if policy == "learned" else policy,
        estimator=estimator,
        predictor=args.predictor,
        guard=args.guard,
        budget=args.budget,
        group_size=8,
        steps=args.steps,
        seeds=[seed],
        eval_every=args.eval_every,
        eval_samples=args.eval_samples,
        cache=args.cache,
        save_model=False,
        trainer={
            "learning_rate": args.learning_rate,
            "lr_scheduler_type": "constant_with_warmup",
            "warmup_steps": 20,
            "adam_beta2": 0.99,
            "save_strategy": "no",
            "variance": "learned" if policy == "learned" else "formula",
        },
    )


def run_cell(config: TrainConfig, policy: str) -> dict[str, object]:
    """Train one cell; its curves and ratios."""
    begun, cpu = time.monotonic(), time.process_time()
    if not run_job(config, progress=PlainProgress(lines=3)).finished:
        raise SystemExit("stopped; a cell that was not finished starts again")
    (run,) = runs_of(config)
    data = read_run(run)
    ratios = variance_ratios(data.history, config.estimator)
    rows = MetricsFile(run.folder / "metrics.jsonl").read()
    heldout = [row for row in rows if "heldout/sampled" in row]
    return {
        "estimator": config.estimator,
        "policy": policy,
        "seed": run.seed,
        "steps": config.steps,
        "budget": config.budget,
        "learning_rate": config.trainer["learning_rate"],
        "predictor": config.predictor,
        "guard": config.guard,
        "eval_steps": [row["step"] for row in heldout],
        "sampled": [row["heldout/sampled"] for row in heldout],
        "greedy": [row["heldout/greedy"] for row in heldout],
        "reward": [round(float(x), 4) for x in data.steps["reward"]],
        "predicted_ratio": overall_ratio(ratios, "predicted"),
        "realised_ratio": overall_ratio(ratios, "realised"),
        "guard_share": float(data.steps["viprl/guard"].mean()),
        "log_loss": float(data.steps["viprl/log_loss"].iloc[-1]),
        "log_loss_constant": float(data.steps["viprl/log_loss_constant"].iloc[-1]),
        "overhead_share": float(data.steps["viprl/overhead_seconds"].sum() / data.steps["step_seconds"].sum()),
        "seconds": round(time.monotonic() - begun, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "machine": platform.machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--estimators", nargs="+", choices=ESTIMATORS, default=ESTIMATORS)
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=POLICIES)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--budget", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--predictor", default="calibrated")
    parser.add_argument("--guard", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--eval-every", type=int, default=25)
    parser.add_argument("--eval-samples", type=int, default=4)
    parser.add_argument("--cache", default=None)
    parser.add_argument("--work", type=Path, default=Path("runs/learning"), help="folder of the runs")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="one JSON file for each cell")
    args = parser.parse_args()
    args.results.mkdir(parents=True, exist_ok=True)
    for seed in range(args.seeds):
        for estimator in args.estimators:
            for policy in args.policies:
                target = args.results / f"{estimator}-{policy}-seed{seed}.json"
                if target.exists():
                    continue
                config = cell_config(estimator, policy, seed, args)
                result = run_cell(config, policy)
                target.write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
