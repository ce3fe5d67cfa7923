"""`viprl serve-search` under parallel clients on loopback, killed and restarted in mid-run.

    python experiments/search/load_test.py CORPUS --seconds 30 --clients 64

Starts the real command as a child process, lets the clients send one query after another, kills the server (SIGKILL) at
half-time, starts it again, and prints throughput, latencies and errors. Exit status 1 if any request failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from viprl.tasks.search.http_client import HttpRetriever
from viprl.tasks.search.questions import load_questions
from viprl.tasks.search.retrievers import RetrievalError


def start(corpus: Path, port: int) -> tuple[subprocess.Popen[str], int]:
    """The server process and its port, once it says that it is ready."""
    command = [sys.executable, "-m", "viprl.cli", "serve-search", str(corpus), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if "/retrieve" not in line:
        raise SystemExit(f"the server did not start: {line!r}")
    print(line.strip(), flush=True)
    return process, int(line.split("/retrieve")[0].rsplit(":", 1)[1])


def client(url: str, queries: list[str], until: float, rows: list[tuple[float, float]], failures: list[str]) -> None:
    """Ask one query after the other; (start, latency) of each."""
    retriever = HttpRetriever(url, timeout=10, attempts=12, backoff=0.1, max_backoff=2.0)
    turn = threading.get_ident()
    while time.monotonic() < until:
        turn += 1
        begun = time.monotonic()
        try:
            hits = retriever.retrieve([queries[turn % len(queries)]], 5)
            if len(hits) != 1:
                failures.append(f"{len(hits)} results")
        except RetrievalError as error:
            failures.append(str(error))
        rows.append((begun, time.monotonic() - begun))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--no-restart", action="store_true")
    args = parser.parse_args()
    queries = [question.question for question in load_questions("load", args.corpus)]
    process, port = start(args.corpus, 0)
    rows: list[tuple[float, float]] = []
    failures: list[str] = []
    began = time.monotonic()
    threads = [
        threading.Thread(
            target=client, args=(f"http://127.0.0.1:{port}", queries, began + args.seconds, rows, failures), daemon=True
        )
        for _ in range(args.clients)
    ]
    for thread in threads:
        thread.start()
    outage = (float("inf"), float("inf"))
    if not args.no_restart:
        time.sleep(args.seconds / 2)
        down = time.monotonic()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process, _ = start(args.corpus, port)
        outage = (down, time.monotonic())
    for thread in threads:
        thread.join(args.seconds + 60)
    elapsed = time.monotonic() - began
    process.send_signal(signal.SIGTERM)
    stopped = process.wait(timeout=20)
    begun, latency = np.array(rows).T
    calm = (begun + latency < outage[0]) | (begun > outage[1] + 2)
    away = 0.0 if args.no_restart else outage[1] - outage[0]
    result = {
        "clients": args.clients,
        "requests": len(rows),
        "errors": len(failures),
        "seconds": round(elapsed, 1),
        "server_away_seconds": round(away, 2),
        "requests_per_second": round(len(rows) / (elapsed - away), 1),
        "p50_ms": round(float(np.quantile(latency[calm], 0.5)) * 1e3, 1),
        "p99_ms": round(float(np.quantile(latency[calm], 0.99)) * 1e3, 1),
        "max_ms_with_outage": round(float(latency.max()) * 1e3, 1),
        "exit_status_on_sigterm": stopped,
    }
    print(json.dumps(result, indent=1))
    for failure in failures[:5]:
        print("failure:", failure)
    return 1 if failures or stopped else 0


if __name__ == "__main__":
    sys.exit(main())
