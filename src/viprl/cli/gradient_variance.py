"""``viprl gradient-variance CONFIG.yaml [--pools FILE] [--json]``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from viprl.errors import require

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
    config = load_config(args.config, measure=args.pools is None or not Path(args.pools).exists())
    from viprl.gradient.job import compare_policies, table

    results = compare_policies(pools_of(config, args.pools), config)
    if args.json:
        rows = [{**dataclasses.asdict(r), "group_sizes": r.group_sizes.tolist()} for r in results]
        print(json.dumps(rows, indent=2))
    else:
        print(table(results))
    return 0


def load_config(path: str, *, measure: bool) -> Any:
    """The configuration, once everything is there that reading it (and measuring) needs."""
    needed = {"torch": "torch", "transformers": "transformers", "datasets": "datasets"} if measure else {}
    require("measuring gradients", yaml="pyyaml", **needed)
    from viprl.gradient.job import load_gradient_config

    return load_gradient_config(path)


def pools_of(config: Any, path: str | None) -> Any:
    """Pools from the file, or measured and kept there."""
    from viprl.gradient.pool import load_pools, save_pools

    if path is not None and Path(path).exists():
        return load_pools(path)
    from viprl.gradient.job import make_config_task, measure_pools
    from viprl.tasks.models import load_model

    task = make_config_task(config)
    cache = None if config.cache is None else Path(config.cache)
    model, tokenizer = load_model(config.model, task, cache_dir=cache)
    live = sys.stderr.isatty()

    def progress(done: int, total: int) -> None:
        if live or done % max(total // 10, 1) == 0 or done == total:
            print(f"{done}/{total} prompts", end="\r" if live and done < total else "\n", file=sys.stderr, flush=True)

    pools = measure_pools(config, task, model, tokenizer, progress=progress)
    if path is not None:
        save_pools(path, pools)
    return pools
