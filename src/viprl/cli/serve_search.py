"""``viprl serve-search CORPUS``: a retrieval server with Search-R1's protocol."""

from __future__ import annotations

import argparse
import math
import signal
import threading
import time
from pathlib import Path
from typing import Any

from viprl.errors import ConfigurationError


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "serve-search",
        help="serve a corpus for search (Search-R1's protocol)",
        description="POST /retrieve {queries, topk, return_scores}; GET /health. No authentication: it binds to "
        "127.0.0.1 unless told otherwise.",
    )
    parser.add_argument("corpus", type=Path, help="folder, JSONL, JSON or parquet of passages, or a saved index folder")
    parser.add_argument("--retriever", default="bm25", help="bm25, dense, or dense:MODEL (default: %(default)s)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 picks a free one (default: %(default)s)")
    parser.add_argument("--top-k", type=int, default=5, help="passages where a request names none")
    parser.add_argument("--save-index", type=Path, metavar="FOLDER", help="write the index there, then serve it")
    parser.add_argument("--grace", type=float, default=5.0, help="seconds for requests in flight at shutdown")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; prints one line when ready and one when stopped."""
    from viprl.tasks.search.indexes import open_index
    from viprl.tasks.search.server import SearchServer, check_server_settings

    check_server_settings(args.port, args.top_k)
    if not 0 <= args.grace < math.inf:
        raise ConfigurationError(f"--grace must be a number of seconds >= 0, but got {args.grace}")
    began = time.perf_counter()
    retriever = open_index(args.corpus, args.retriever)
    if args.save_index is not None:
        retriever.save(args.save_index)
    server = SearchServer(retriever, host=args.host, port=args.port, default_top_k=args.top_k)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    server.start()
    print(
        f"serving {len(retriever)} passages ({args.retriever}) at {server.url}/retrieve, "
        f"ready after {time.perf_counter() - began:.1f} s",
        flush=True,
    )
    stop.wait()
    server.stop(grace=args.grace)
    print(f"stopped after {server.counts['requests']} requests, {server.counts['queries']} queries", flush=True)
    return 0
