"""``viprl allocate``: group sizes for a file of prompts, from a history of outcomes."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from viprl.errors import InvalidInputError

if TYPE_CHECKING:
    from viprl.plan import Plan

ESTIMATORS = ("rloo", "dr_grpo", "grpo")
PREDICTORS = ("calibrated", "discounted_beta", "last_rate", "moving_average")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "allocate",
        help="divide a rollout budget over a file of prompts",
        description="Reads prompts and a history of outcomes, learns from the history step by step, and prints how "
        "many rollouts each prompt should get, with the reasons.",
    )
    parser.add_argument("--prompts", type=Path, required=True, help="prompts.jsonl, .parquet or .csv")
    parser.add_argument("--history", type=Path, help="history of outcomes (viprl, TRL, verl or CSV); default: none")
    parser.add_argument("--budget", type=int, required=True, help="rollouts to divide, spent exactly")
    parser.add_argument("--min-group-size", type=int, default=3)
    parser.add_argument("--max-group-size", type=int, default=32)
    parser.add_argument("--estimator", choices=ESTIMATORS, default="rloo")
    parser.add_argument("--predictor", choices=PREDICTORS, default="calibrated")
    parser.add_argument("--policy", default="vip", help="vip, uniform, inverse_accuracy, ... (default: %(default)s)")
    parser.add_argument("--embeddings", type=Path, help=".npz of `viprl embed`; default: texts alone")
    parser.add_argument("--side-information", nargs="+", default=[], metavar="COLUMN", help="numeric columns")
    parser.add_argument("--text-column", help="default: the first of text, prompt, question, problem")
    parser.add_argument("--id-column", help="default: prompt_id or id where present, else a hash of the text")
    parser.add_argument("--on-error", choices=("stop", "skip"), default="stop", help="malformed history rows")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--top", type=int, help="print only the prompts with the most rollouts")
    parser.add_argument("--explain", nargs="+", default=[], metavar="PROMPT_ID", help="say why, for these prompts")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Learn from the history, allocate, print; notices go to stderr."""
    import viprl
    from viprl.allocation import POLICIES
    from viprl.embeddings import read_prompt_table, table_prompt_ids

    if args.policy not in POLICIES:
        raise InvalidInputError(f"--policy must be one of {sorted(POLICIES)}, but got {args.policy!r}")
    table = read_prompt_table(args.prompts, text_column=args.text_column)
    ids = table_prompt_ids(args.prompts, table, args.id_column)
    models = {"rloo": viprl.RLOO, "dr_grpo": viprl.DrGRPO, "grpo": viprl.GRPO}
    allocator = viprl.RolloutAllocator(
        _predictor(args, ids, table),
        models[args.estimator](),
        min_group_size=args.min_group_size,
        max_group_size=args.max_group_size,
        policy=POLICIES[args.policy](),
        guard=False,  # one plan for the user to judge; the guard belongs to a run
    )
    if args.history is not None:
        _learn(allocator.predictor, args, set(ids))
    plan = allocator.allocate(ids, args.budget)
    print(_as_json(plan, args) if args.json else _as_text(plan, args))
    return 0


def _predictor(args: argparse.Namespace, ids: list[str], table: Any) -> Any:
    import numpy as np

    import viprl
    from viprl.embeddings import load_embeddings
    from viprl.prompts.ids import plain_text

    if args.predictor != "calibrated":
        kinds = {
            "discounted_beta": viprl.DiscountedBeta,
            "last_rate": viprl.LastRate,
            "moving_average": viprl.MovingAverage,
        }
        return kinds[args.predictor](prompt_ids=ids)
    vectors = None
    if args.embeddings is not None:
        stored = load_embeddings(args.embeddings)
        where = {prompt_id: row for row, prompt_id in enumerate(stored.prompt_ids)}
        absent = [prompt_id for prompt_id in ids if prompt_id not in where]
        if absent:
            raise InvalidInputError(
                f"every prompt must have an embedding, but {len(absent)} of {len(ids)} are not in {args.embeddings} "
                f"(first: {absent[0]!r})"
            )
        vectors = stored.embeddings[np.array([where[prompt_id] for prompt_id in ids])]
    side = {name: [_number(row, name, args.prompts) for row in table.rows] for name in args.side_information}
    texts = [plain_text(text) for text in table.texts]
    return viprl.CalibratedPredictor(vectors, prompt_ids=ids, texts=texts, side_information=side or None)


def _number(row: dict[str, Any], name: str, path: Path) -> float:
    value = row.get(name)
    if value is None or value == "":
        return float("nan")
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"{path}: side information must be numbers, but {name!r} holds {value!r}") from error


def _learn(predictor: Any, args: argparse.Namespace, known: set[str]) -> None:
    from viprl.replay.readers import read_log

    log, report = read_log(args.history, on_error=args.on_error)
    foreign: set[str] = set()
    for start, end in zip(log.offsets[:-1], log.offsets[1:], strict=True):
        ids = [log.prompt_ids[row] for row in log.rows[start:end]]
        keep = [i for i, prompt_id in enumerate(ids) if prompt_id in known]
        foreign.update(prompt_id for prompt_id in ids if prompt_id not in known)
        if keep:
            step = [ids[i] for i in keep]
            predictor.observe(step, log.successes[start:end][keep], log.rollouts[start:end][keep].astype(float))
    for line in report.lines():
        print(f"viprl allocate: {line}", file=sys.stderr)
    if foreign:
        print(
            f"viprl allocate: {len(foreign)} prompts of the history are not in {args.prompts} and taught nothing "
            f"(first: {min(foreign)!r})",
            file=sys.stderr,
        )


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
    metrics = plan.metrics()
    lines.append(
        f"\n{plan.budget} rollouts over {len(plan)} prompts by {plan.policy}, groups of "
        f"{plan.group_sizes.min()} to {plan.group_sizes.max()}; predicted gradient variance "
        f"{metrics['viprl/variance_ratio']:.3f} of uniform groups'; "
        f"{metrics['viprl/dead_groups_predicted']:.1f} groups expected to teach nothing"
    )
    lines += [plan.explain(prompt_id) for prompt_id in args.explain]
    return "\n".join(lines)
