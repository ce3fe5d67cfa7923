"""``viprl train CONFIG.yaml [key=value ...]``."""

from __future__ import annotations

import argparse
from typing import Any

from viprl.errors import require

DESCRIPTION = """Train a model with adaptive rollouts, as a YAML file says, and write a report.

Overrides: key=value or --key value; dots reach inside: trainer.learning_rate=1e-4 task.train_size=64 seeds=[0,1].
Ctrl-C ends after the current step and saves; resume=true continues.
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "train",
        help="train a model with adaptive rollouts and write a report",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", metavar="CONFIG.yaml")
    parser.add_argument(
        "overrides", nargs=argparse.REMAINDER, metavar="key=value", help="settings of the file to change"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    require("viprl train", trl="trl", yaml="pyyaml", pandas="pandas", pyarrow="pyarrow")
    from viprl.training import load_config, run_job

    result = run_job(load_config(args.config, args.overrides))
    for line in result.lines:
        print(line)
    return 0 if result.finished else 130
