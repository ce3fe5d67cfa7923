"""The search part of ``viprl evaluate``: its options, and what it does with them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from viprl.errors import ConfigurationError
from viprl.tasks.models import load_model

TASKS = ("bamboogle", "musique", "hotpotqa", "search")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that only search tasks read; model, samples, batch size and seed are the command's own."""
    group = parser.add_argument_group(
        "search tasks", f"--task {', '.join(TASKS[:-1])}, or search for a file of your own (--data)"
    )
    group.add_argument("--data", help="questions: a JSONL, JSON or parquet file, or a hub id")
    group.add_argument("--split", default="test", help="of a hub data set (default: %(default)s)")
    group.add_argument("--limit", type=int, help="the first so many questions")
    group.add_argument("--retriever", default="bm25", help="bm25, dense, dense:MODEL, or a server's URL")
    group.add_argument("--corpus", help="passages; default: the paragraphs that the questions' file carries")
    group.add_argument("--top-k", type=int, default=5, help="passages of a search, and the k of the retrieval scores")
    group.add_argument("--max-calls", type=int, default=8, help="searches of a rollout")
    group.add_argument("--max-turns", type=int, default=6)
    group.add_argument("--max-turn-tokens", type=int, default=1024)
    group.add_argument("--max-tokens", type=int, default=8192, help="of a rollout, results included")
    group.add_argument("--temperature", type=float, default=0.0, help="0 is greedy, with one sample a question")
    group.add_argument("--no-system-prompt", action="store_true", help="the model knows the protocol")
    group.add_argument("--output", help="folder for scores.json, transcripts.jsonl and transcripts.html")


def run(args: argparse.Namespace) -> int:
    """Evaluate ``args.model`` on a search task and print the scores with intervals."""
    from viprl.tasks.search.agent import LoopLimits, ModelGenerate
    from viprl.tasks.search.environment import SearchEnvironmentFactory
    from viprl.tasks.search.evaluate import evaluate_search
    from viprl.tasks.search.protocol import SYSTEM_PROMPT
    from viprl.tasks.search.questions import load_questions
    from viprl.tasks.search.session import SearchLimits

    if args.model is None:
        raise ConfigurationError(f"--task {args.task} needs --model")
    if args.task == "search" and args.data is None:
        raise ConfigurationError("--task search needs --data")
    questions = load_questions(args.task, args.data, split=args.split, limit=args.limit)
    retriever = _retriever(args)
    model, tokenizer = _load(args.model)
    factory = SearchEnvironmentFactory(
        retriever, tokenizer, limits=SearchLimits(top_k=args.top_k, max_calls=args.max_calls)
    )
    found = evaluate_search(
        ModelGenerate(model, tokenizer, temperature=args.temperature, batch_size=args.batch_size, seed=args.seed),
        tokenizer,
        questions,
        factory.session,
        name=args.task,
        samples=1 if args.temperature == 0 else args.samples,
        k=args.top_k,
        limits=LoopLimits(args.max_turns, args.max_turn_tokens, args.max_tokens),
        system_prompt=None if args.no_system_prompt else SYSTEM_PROMPT,
    )
    if args.json:
        measures = {name: [value.estimate, value.low, value.high] for name, value in found.measures.items()}
        print(json.dumps({"name": found.name, "measures": measures, "events": found.events}, indent=1))
    else:
        print("\n".join(found.lines()))
    if args.output:
        print("\n".join(f"wrote {path}" for path in found.write(args.output)))
    return 0


def _retriever(args: argparse.Namespace) -> Any:
    from viprl.tasks.search.corpus import load_corpus
    from viprl.tasks.search.indexes import build_retriever, open_index

    if args.retriever.startswith(("http://", "https://")):
        return build_retriever(args.retriever, args.corpus)
    if args.corpus is not None:
        return open_index(args.corpus, args.retriever)
    if args.data is None or not Path(args.data).is_file():
        raise ConfigurationError(f"--retriever {args.retriever} needs --corpus, or --data with paragraphs")
    passages = load_corpus(args.data) if _carries_paragraphs(args.data) else None
    if passages is None:
        raise ConfigurationError(f"the questions of {args.data} carry no paragraphs: give --corpus or a server's URL")
    return build_retriever(args.retriever, passages)


def _carries_paragraphs(file: str) -> bool:
    from viprl.tasks.search.corpus import read_records

    first: dict[str, Any] = next(iter(read_records(file)), {})
    return "paragraphs" in first or "context" in first


def _load(name: str) -> tuple[Any, Any]:
    model, tokenizer = load_model(name)
    if not tokenizer.chat_template:
        raise ConfigurationError(f"search needs a model with a chat template, but {name!r} has none")
    import torch

    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), tokenizer
