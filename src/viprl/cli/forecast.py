"""``viprl forecast``: what allocation and selection can gain on these prompts, and which bounds and budget to take."""

from __future__ import annotations

import argparse
import json

from viprl.cli.replay import columns_argument
from viprl.registry import names
from viprl.replay.forecast import forecast, forecast_data, forecast_lines
from viprl.replay.readers import ReadReport, read_rates
from viprl.replay.rules import Setting, formula
from viprl.replay.saving import forecast_saving, saving_data, saving_lines
from viprl.settings import AllocationSettings


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "forecast",
        help="dead groups and possible gain before a run, with recommended L, U and C",
        description="From prompts' success rates (of the model to be trained, or of a similar one): expected dead "
        "groups, the variance that a perfect and a realistic allocator reach, and which L, U and C to take.",
    )
    parser.add_argument(
        "--rates", required=True, help="file with prompt_id and successes, n_rollouts; or success_rate; or reward"
    )
    parser.add_argument("--rollouts", type=int, help="how many are behind each success_rate")
    parser.add_argument("--budget", type=int, required=True, help="rollouts of a step, C")
    parser.add_argument("--batch", type=int, help="prompts of a step, B; default C / 8")
    parser.add_argument(
        "--candidates",
        type=int,
        default=4,
        help="prompts offered for each of a step, for what selection saves; 1: none",
    )
    parser.add_argument("--selection", default="learnability", choices=names("selection"))
    parser.add_argument("--estimator", default="rloo", choices=names("estimator"))
    parser.add_argument("--columns", help="names in your file: prompt_id=ID,successes=K,n_rollouts=N or success_rate=R")
    parser.add_argument("--success-at", type=float, help="rewards from this value on are successes")
    parser.add_argument("--on-error", default="stop", choices=["stop", "skip"], help="what a malformed row does")
    parser.add_argument("--seed", type=int, default=0, help="of the simulated steps")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_forecast)


def run_forecast(args: argparse.Namespace) -> int:
    model = formula(args.estimator)
    settings = AllocationSettings(candidates=args.candidates, selection=args.selection)
    report = ReadReport("rates", args.on_error)
    columns = columns_argument(args.columns)
    rates = read_rates(args.rates, report, columns=columns, rollouts=args.rollouts, success_at=args.success_at)
    result = forecast(rates, args.budget, model, batch=args.batch, seed=args.seed)
    selected = None
    if settings.candidates > 1:
        setting = Setting(model, result.lower, result.upper)
        selected = forecast_saving(
            rates, result.batch, setting, settings, group_size=result.budget / result.batch, seed=args.seed
        )
    if args.json:
        print(json.dumps({**forecast_data(result, report.lines()), "selection": saving_data(selected)}, indent=1))
    else:
        more = [] if selected is None else ["", *saving_lines(selected)]
        print("\n".join([*report.lines(), "", *forecast_lines(result), *more]))
    return 0
