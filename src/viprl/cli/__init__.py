"""The ``viprl`` command: one file per verb, each with ``add_parser(subparsers)`` and ``run(args) -> int``."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence

import viprl
from viprl.errors import ViprlError

VERBS = (
    "embed",
    "allocate",
    "replay",
    "forecast",
    "train",
    "arena",
    "evaluate",
    "gradient_variance",
    "diagnose",
    "serve_search",
    "doctor",
)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="viprl", description="Adaptive rollout allocation for RLVR.")
    parser.add_argument("--version", action="version", version=f"viprl {viprl.__version__}")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in VERBS:
        if importlib.util.find_spec(f"viprl.cli.{verb}") is not None:
            importlib.import_module(f"viprl.cli.{verb}").add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; expected errors are one line on stderr and exit status 2."""
    args = build_parser().parse_args(argv)
    try:
        return int(args.run(args))
    except (ViprlError, OSError) as error:
        print(f"viprl {args.verb}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"viprl {args.verb}: interrupted", file=sys.stderr)
        return 130
