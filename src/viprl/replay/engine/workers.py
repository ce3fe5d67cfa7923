"""Processes that work through a list of tasks and can be stopped at any moment.

The standard pools share one queue between their workers; ending a worker in the middle of a message leaves its lock
taken and the interpreter waiting at exit. Here every worker has a pipe of its own, so that Ctrl-C is clean.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar, cast

T = TypeVar("T", bound=Hashable)
Work = Callable[[Any, Callable[[], None]], Any]  # (task, count one step) -> answer

POLL_SECONDS = 0.25


class WorkerPool:
    """``jobs`` processes; use as a context manager, which ends them.

    Args:
        jobs: number of processes.
        work: called in a worker for each task; must be picklable where processes are not forked.

    Attributes:
        counter: shared number of steps done.
    """

    def __init__(self, jobs: int, work: Work) -> None:
        methods = multiprocessing.get_all_start_methods()
        self._context: Any = multiprocessing.get_context("fork" if "fork" in methods else "spawn")
        self.counter: Any = self._context.Value("q", 0)
        self._work = work
        self._workers: dict[Connection, Any] = {}
        for _ in range(jobs):
            self._start()

    def run(self, tasks: Sequence[T]) -> Iterator[tuple[T, Any]]:
        """(task, answer) in the order of completion: the answer, or the text of the error that ended it.

        From time to time a pair with the answer None, while nothing has finished.
        """
        waiting, running = list(tasks), {}
        for pipe in list(self._workers):
            if waiting:
                running[pipe] = waiting.pop(0)
                pipe.send(running[pipe])
        while running:
            ready = wait(list(running), timeout=POLL_SECONDS)
            if not ready:
                yield next(iter(running.values())), None
            for item in ready:
                pipe = cast(Connection, item)
                task = running.pop(pipe)
                try:
                    answer = pipe.recv()
                except EOFError:
                    answer = "its process ended without an answer (out of memory?)"
                    pipe = self._replace(pipe)
                if waiting:
                    running[pipe] = waiting.pop(0)
                    pipe.send(running[pipe])
                yield task, answer

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *error: object) -> None:
        for pipe, process in self._workers.items():
            pipe.close()
            process.terminate()
        for process in self._workers.values():
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()

    def _start(self) -> Connection:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._work, self.counter), daemon=True)
        process.start()
        theirs.close()
        pipe: Connection = ours
        self._workers[pipe] = process
        return pipe

    def _replace(self, pipe: Connection) -> Connection:
        process = self._workers.pop(pipe)
        pipe.close()
        process.join()
        return self._start()


def _serve(pipe: Connection, work: Work, counter: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with suppress(ImportError):
        from threadpoolctl import threadpool_limits

        threadpool_limits(1)  # one process a core: more threads would only fight

    def count() -> None:
        with counter.get_lock():
            counter.value += 1

    parent = os.getppid()
    while True:
        while not pipe.poll(1.0):
            if os.getppid() != parent:  # killed: sibling workers may hold the pipe open
                return
        try:
            task = pipe.recv()
        except EOFError:
            return
        try:
            answer = work(task, count)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        pipe.send(answer)
