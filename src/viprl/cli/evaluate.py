"""``viprl evaluate``: measures of a file of completions, or of a model on a task."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from viprl.cli.replay import columns_argument
from viprl.errors import ConfigurationError, MissingDependencyError
from viprl.evaluation.completions import Problem, gather, read_completions
from viprl.evaluation.measure import measure
from viprl.evaluation.recording import RecordedTask
from viprl.tasks.search import command as search


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "evaluate",
        help="Pass@k, Mean@k, Maj@k, EM, F1, retrieval scores with intervals",
        description="Measures of completions in a file (JSONL or parquet, one a row), or of a model on a task.",
    )
    parser.add_argument("file", nargs="?", help="completions: id or problem, completion, and correct or gold answers")
    parser.add_argument("--gold", help="file with the problems' gold answers")
    parser.add_argument("--columns", help="names in your files: id=...,completion=...,correct=...,gold=...")
    parser.add_argument(
        "--grader",
        choices=["exact", "final", "math"],
        default="exact",
        help="the answer is the whole completion (exact), or its last 'Answer:' line or \\boxed{}; compared as text "
        "(exact, final) or as mathematics (math)",
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
    if args.task in search.TASKS:
        return search.run(args)
    ks = [int(k) for k in args.k.split(",")] if args.k else []
    if (args.file is None) == (args.model is None):
        raise ConfigurationError("give either a file of completions or --model with --task")
    problems = _generate(args) if args.model else read_completions(
        args.file, columns=columns_argument(args.columns), gold=args.gold
    )  # fmt: skip
    extract, grade, close = _grader(args.grader)
    try:
        result = measure(problems, ks=ks, extract=extract, grade=grade, retrieval_k=args.retrieval_k, seed=args.seed)
    finally:
        close()
    if args.json:
        plain = {name: asdict(value) for name, value in result.measures.items()}
        print(json.dumps({**asdict(result), "measures": plain}, indent=1))
    else:
        print("\n".join(result.lines()))
    return 0


def _grader(name: str) -> tuple[Any, Any, Any]:
    """(extract, grade, close) of a grader's name."""
    if name == "exact":
        return None, None, lambda: None
    from viprl.tasks.math_grader import MathGrader, final_answer

    if name == "final":
        return final_answer, None, lambda: None
    grader = MathGrader()
    return final_answer, grader.grade, grader.close


def _generate(args: argparse.Namespace) -> Sequence[Problem]:
    """Problems with completions of ``--model`` on the held-out prompts of ``--task``."""
    if args.task is None:
        raise ConfigurationError("--model needs --task")
    try:
        from viprl.tasks import evaluate_heldout, make_task
        from viprl.tasks.models import load_model
    except ImportError as error:
        raise MissingDependencyError("evaluating a model needs the extra: pip install 'viprl[trl]'") from error
    settings = {}
    for pair in args.set:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigurationError(f"--set must be NAME=VALUE, but got {pair!r}")
        settings[name] = _literal(value)
    task = RecordedTask(make_task(args.task, **settings))
    model, tokenizer = load_model(args.model, task)
    held_out = evaluate_heldout(
        model, tokenizer, task, samples=args.samples, batch_size=args.batch_size, seed=args.seed
    )
    sampled = task.rows[: args.samples * len(held_out.prompt_ids)]
    if args.save:
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in sampled)
        Path(args.save).write_text(lines, encoding="utf-8")
    print(f"greedy success rate {held_out.greedy_rate:.4f}")
    return gather(enumerate(sampled, start=1), columns={"correct": "correct", "completion": "completion"})


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
