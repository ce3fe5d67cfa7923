"""``viprl forecast``: what allocation can gain on these prompts, and which bounds and budget to take."""

from __future__ import annotations

import argparse
import dataclasses
import json

from viprl.cli.replay import columns_argument
from viprl.replay.forecast import forecast
from viprl.replay.forecast_words import forecast_lines, reasons
from viprl.replay.job import ESTIMATORS
from viprl.replay.readers import ReadReport, read_rates


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "forecast",
        help="dead groups and possible gain before a run, with recommended L, U and C",
        description="From prompts' success rates (of the model to be trained, or of a similar one): expected dead "
        "groups, the variance that a perfect and a realistic allocator reach, and which L, U and C to take.",
    )
    parser.add_argument("--rates", required=True, help="file with prompt_id and successes, n_rollouts or success_rate")
    parser.add_argument("--budget", type=int, required=True, help="rollouts of a step, C")
    parser.add_argument("--batch", type=int, help="prompts of a step, B; default C / 8")
    parser.add_argument("--estimator", default="rloo", choices=sorted(ESTIMATORS))
    parser.add_argument("--columns", help="names in your file: prompt_id=ID,successes=K,n_rollouts=N or success_rate=R")
    parser.add_argument("--on-error", default="stop", choices=["stop", "skip"])
    parser.add_argument("--seed", type=int, default=0, help="of the simulated steps")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_forecast)


def run_forecast(args: argparse.Namespace) -> int:
    report = ReadReport("rates", args.on_error)
    rates = read_rates(args.rates, report, columns=columns_argument(args.columns))
    model = ESTIMATORS[args.estimator]()
    result = forecast(rates, args.budget, model, batch=args.batch, seed=args.seed)
    if args.json:
        plain = dataclasses.asdict(result)
        plain |= {
            "grid": result.grid.tolist(),
            "weights": result.weights.tolist(),
            "reasons": reasons(result),
            "reading": report.lines(),
        }
        print(json.dumps(plain, indent=1))
    else:
        print("\n".join([*report.lines(), "", *forecast_lines(result)]))
    return 0
