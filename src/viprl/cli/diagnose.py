"""``viprl diagnose CONFIG.yaml | POOLS.npz``."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

DESCRIPTION = """Test the two assumptions behind the variance formula on your own model.

Takes the configuration of gradient-variance (and measures), or the file that its --pools wrote.
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "diagnose",
        help="test the variance formula's assumptions; is it safe here?",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="CONFIG.yaml|POOLS.npz")
    parser.add_argument("--pools", metavar="FILE.npz", help="keep the measurement here")
    parser.add_argument(
        "--aggregation", choices=("sum", "mean"), default="sum", help="gradient over a rollout's tokens"
    )
    parser.add_argument("--group-size", type=int, default=8, help="mean group size of the compared allocations")
    parser.add_argument("--json", action="store_true", help="print JSON instead of words")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from viprl.diagnose import diagnose
    from viprl.gradient.job import load_gradient_config, pools_of
    from viprl.gradient.pool import load_pools

    measured = args.source.endswith(".npz")
    pools = load_pools(args.source) if measured else pools_of(load_gradient_config(args.source), args.pools)
    report = diagnose(
        pools, aggregation=args.aggregation, mean_group_size=args.group_size, max_group_size=4 * args.group_size
    )
    if args.json:
        print(json.dumps(dataclasses.asdict(report), indent=2))
        return 0
    print(report.text)
    print("\nmeasured variance relative to uniform groups, cross-fitted:")
    for name, ratio in report.ratios.items():
        print(f"  {name:<20} {ratio.value:.3f}  ({ratio.low:.3f} to {ratio.high:.3f})")
    print("correlation of proxies with the squared norm, within prompts:")
    for name, value in report.proxy_correlation.items():
        print(f"  {name:<20} {value:+.2f}")
    return 0
