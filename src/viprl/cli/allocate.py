"""``viprl allocate``: group sizes for a file of prompts, from a history of outcomes."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from viprl.cli.settings import add_settings, settings_from
from viprl.errors import ConfigurationError

if TYPE_CHECKING:
    from viprl.plan import Plan

SETTINGS = (
    "estimator", "policy", "predictor", "budget", "min_group_size", "max_group_size", "candidates", "selection",
    "exploration", "max_rest", "prompt_id_column", "side_information", "initial_rates", "initial_rollouts",
    "initial_discount", "embedding_model", "embedding_cache",
)  # fmt: skip


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "allocate",
        help="divide a rollout budget over a file of prompts",
        description="Reads prompts and a history of outcomes, learns from the history step by step, and prints how "
        "many rollouts each prompt should get, with the reasons.",
    )
    parser.add_argument("--prompts", type=Path, required=True, help="prompts.jsonl, .parquet or .csv")
    parser.add_argument("--history", type=Path, help="history of outcomes (viprl, TRL, verl or CSV); default: none")
    parser.add_argument("--columns", help="names in the history: step=STEP,prompt_id=ID,successes=K,n_rollouts=N")
    parser.add_argument("--embeddings", type=Path, help=".npz of `viprl embed`, or .npy with a row for each prompt")
    parser.add_argument(
        "--rates", type=Path, help="this model's success rates before the run (as for viprl forecast): a start"
    )
    parser.add_argument("--text-column", help="default: the first of prompt_text, text, prompt, question, problem")
    parser.add_argument("--on-error", choices=("stop", "skip"), default="stop", help="malformed history rows")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--top", type=_positive, help="print only this many prompts, those with the most rollouts")
    parser.add_argument("--explain", nargs="+", default=[], metavar="PROMPT_ID", help="say why, for these prompts")
    add_settings(parser, SETTINGS, estimator="rloo")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Learn from the history, allocate, print; notices go to stderr."""
    from viprl.cli.replay import columns_argument
    from viprl.replay.one_plan import plan_for_file

    if args.columns is not None and args.history is None:
        raise ConfigurationError(
            f"--columns names the columns of --history, which is not given, but got {args.columns!r}"
        )
    plan = plan_for_file(
        args.prompts,
        settings_from(args, SETTINGS),
        history=args.history,
        columns=columns_argument(args.columns),
        on_error=args.on_error,
        text_column=args.text_column,
        embeddings=args.embeddings,
        rates=args.rates,
        say=lambda sentence: print(f"viprl allocate: {sentence}", file=sys.stderr),
    )
    print(_as_json(plan, args) if args.json else _as_text(plan, args))
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, but got {number}")
    return number


def _shown(plan: Plan, args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = plan.to_rows()
    if args.top is None:
        return rows
    return sorted(rows, key=lambda row: -row["group_size"])[: args.top]


def _as_json(plan: Plan, args: argparse.Namespace) -> str:
    return json.dumps(
        {
            "budget": plan.budget,
            "policy": plan.policy,
            "estimator": plan.model,
            "metrics": plan.metrics(),
            "prompts": _shown(plan, args),
            "left_out": [left._asdict() for left in plan.left_out],
            "explanations": {prompt_id: plan.explain(prompt_id) for prompt_id in args.explain},
        },
        indent=1,
    )


def _as_text(plan: Plan, args: argparse.Namespace) -> str:
    rows = _shown(plan, args)
    width = min(max(len(str(row["prompt_id"])) for row in rows), 40)
    lines = [f"{'prompt':<{width}}  rollouts  uniform  success  E[p(1-p)]  history"]
    for row in rows:
        history = "none" if row["cold"] else "yes"
        lines.append(
            f"{row['prompt_id']!s:<{width}.{width}}  {row['group_size']:8d}  {row['uniform_group_size']:7d}  "
            f"{row['predicted_mean']:7.3f}  {row['predicted_bernoulli_variance']:9.4f}  {history}"
        )
    if len(rows) < len(plan):
        lines.append(f"... and {len(plan) - len(rows)} more prompts")
    if plan.left_out:
        lines.append(f"{len(plan.left_out)} of {len(plan.selected or ())} candidates were left out; --explain says why")
    metrics = plan.metrics()
    lines.append(
        f"\n{plan.budget} rollouts over {len(plan)} prompts by {plan.policy}, groups of "
        f"{plan.group_sizes.min()} to {plan.group_sizes.max()}; predicted gradient variance "
        f"{metrics['viprl/variance_ratio']:.3f} of uniform groups'; "
        f"{metrics['viprl/dead_groups_predicted']:.1f} groups expected to teach nothing"
    )
    lines += [plan.explain(prompt_id) for prompt_id in args.explain]
    return "\n".join(lines)
