"""``viprl evaluate``: measures of a file of completions, or of a model on a task."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from viprl.cli.replay import columns_argument
from viprl.errors import ConfigurationError, require
from viprl.evaluation.completions import NAMES, Completions, gather, read_completions
from viprl.evaluation.graders import GRADERS, choose_grader
from viprl.evaluation.measure import measure
from viprl.evaluation.recording import RecordedTask
from viprl.tasks.search import command as search


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "evaluate",
        help="Pass@k, Mean@k, Maj@k, EM, F1, retrieval scores with intervals",
        description="Measures of completions in a file (JSONL, CSV or parquet, one a row), or of a model on a task.",
    )
    parser.add_argument("file", nargs="?", help="completions: id or problem, completion, and correct or gold answers")
    parser.add_argument("--gold", help="file with the problems' gold answers")
    parser.add_argument("--columns", help=f"names in your files: {', '.join(NAMES)}, as id=...,completion=...")
    parser.add_argument(
        "--grader",
        choices=GRADERS,
        help="the marks that the file has (recorded), or the answers against gold answers: the whole completion as "
        "text (exact), its last 'Answer:' line or \\boxed{} as text (final) or as mathematics (math); by default "
        "recorded where there are marks, else chosen from the data and said",
    )
    parser.add_argument(
        "--missing",
        choices=["left-out", "wrong"],
        default="left-out",
        help="completions without a recorded mark are left out (default) or count as wrong",
    )
    parser.add_argument("--k", help="for Pass@k, Mean@k, Maj@k, comma-separated; default 1 and all completions")
    parser.add_argument("--retrieval-k", type=int, default=5, help="cut of the retrieval scores")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap, and of generation with --model")
    parser.add_argument("--json", action="store_true", help="print JSON")
    model = parser.add_argument_group("a model instead of a file")
    model.add_argument("--model", help="path or hub id; 'tiny' for a task that brings its own")
    model.add_argument("--task", help="arithmetic, math, reasoning_gym/<data set>, or a search task")
    model.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the task")
    model.add_argument("--samples", type=int, default=4, help="completions a problem, at temperature 1")
    model.add_argument("--batch-size", type=int, default=64)
    model.add_argument("--save", help="write the completions here (JSONL)")
    search.add_arguments(parser)
    parser.set_defaults(run=run_evaluate)


def run_evaluate(args: argparse.Namespace) -> int:
    for option, least in (("retrieval_k", 1), ("samples", 1), ("batch_size", 1), ("seed", 0)):
        if getattr(args, option) < least:
            name = "--" + option.replace("_", "-")
            raise ConfigurationError(f"{name} >= {least} must hold, but got {getattr(args, option)}")
    if args.task in search.TASKS:
        return search.run(args)
    ks = _ks(args.k)
    if (args.file is None) == (args.model is None):
        raise ConfigurationError("give either a file of completions or --model with --task")
    found = _generate(args) if args.model else read_completions(
        args.file, columns=columns_argument(args.columns), gold=args.gold
    )  # fmt: skip
    grader = choose_grader(found, args.grader, missing_wrong=args.missing == "wrong")
    try:
        result = measure(found, grader=grader, ks=ks, retrieval_k=args.retrieval_k, seed=args.seed)
    finally:
        grader.close()
    if args.json:
        plain = {name: asdict(value) for name, value in result.measures.items()}
        print(json.dumps({**asdict(result), "measures": plain}, indent=1))
    else:
        print("\n".join(result.lines()))
    return 0


def _ks(text: str | None) -> list[int]:
    """The numbers of ``--k``."""
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) >= 1 for part in parts):
        raise ConfigurationError(f"--k must be whole numbers >= 1, comma-separated, but got {text!r}")
    return [int(part) for part in parts]


def _generate(args: argparse.Namespace) -> Completions:
    """Problems with completions of ``--model`` on the held-out prompts of ``--task``."""
    if args.task is None:
        raise ConfigurationError("--model needs --task")
    if args.save and not Path(args.save).absolute().parent.is_dir():
        raise ConfigurationError(f"--save needs a folder that exists, but got {args.save}")
    require("evaluating a model", torch="torch", transformers="transformers", datasets="datasets")
    from viprl.tasks import evaluate_heldout, make_task
    from viprl.tasks.models import load_model

    settings = {}
    for pair in args.set:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigurationError(f"--set must be NAME=VALUE, but got {pair!r}")
        settings[name] = _literal(value)
    task: Any = RecordedTask(make_task(args.task, **settings))
    model, tokenizer = load_model(args.model, task)
    held_out = evaluate_heldout(
        model, tokenizer, task, samples=args.samples, batch_size=args.batch_size, seed=args.seed
    )
    sampled = task.rows[: args.samples * len(held_out.prompt_ids)]
    if args.save:
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in sampled)
        Path(args.save).write_text(lines, encoding="utf-8")
    print(f"greedy success rate {held_out.greedy_rate:.4f}")
    return gather(enumerate(sampled, start=1))


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
