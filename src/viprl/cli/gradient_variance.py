"""``viprl gradient-variance CONFIG.yaml [--pools FILE] [--json]``."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

DESCRIPTION = """Measure the policy gradient's variance under uniform and adaptive group sizes.

For every prompt, rollouts are drawn and their gradients compressed. Success rates and learned variances come from one
part of them, the truth from the other. Ratios are relative to uniform groups: below 1 is better. The oracle knows the
truth it is measured on, so its ratio is a limit and a little too good.
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "gradient-variance",
        help="measure whether adaptive allocation lowers the gradient's variance",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", metavar="CONFIG.yaml")
    parser.add_argument(
        "--pools", metavar="FILE.npz", help="keep the measurement here, or use it if the file exists (no model then)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from viprl.gradient.job import compare_policies, load_gradient_config, pools_of, table

    config = load_gradient_config(args.config, measure=args.pools is None or not Path(args.pools).exists())
    results = compare_policies(pools_of(config, args.pools), config)
    if args.json:
        rows = [{**dataclasses.asdict(r), "group_sizes": r.group_sizes.tolist()} for r in results]
        print(json.dumps(rows, indent=2))
    else:
        print(table(results))
    return 0
