"""``viprl arena``: rules compared in training, at equal rollouts, in a few minutes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from viprl.errors import require

DESCRIPTION = """Train the demo's small model under several rules, each with the same number of generated rollouts.

Most of its prompts are beyond the model. A cell is one rule: uniform (equal groups for every prompt of the batch),
default (viprl's), a policy (vip, inverse_accuracy, ...: groups of the batch) or a selection (top, unbiased, ...: which
of four times as many candidates get rollouts). Results lie in DIR/results.jsonl; what is there is not run again, so
more seeds or cells may be asked for later.
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "arena",
        help="train a small model under several rules at equal rollouts and compare them",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cells", nargs="+", metavar="CELL", default=["uniform", "default", "vip", "top"])
    parser.add_argument("--seeds", type=int, default=1, help="runs of each cell; from two on there are intervals")
    parser.add_argument("--rollouts", type=int, default=10_240, help="of each run; a multiple of 256")
    parser.add_argument("--out", default="viprl-arena", metavar="DIR")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    require("viprl arena", trl="trl", pyarrow="pyarrow")
    from viprl.reports.progress import make_progress
    from viprl.training.arena import Arena, run_arena

    arena = Arena(Path(args.out), cells=args.cells, seeds=args.seeds, rollouts=args.rollouts)
    return 0 if run_arena(arena, make_progress(show=True), lambda lines: print("\n".join(lines))) else 130
