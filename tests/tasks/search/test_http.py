"""Client and server: against each other, and each against a partner that misbehaves."""

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from viprl.errors import ConfigurationError, InvalidInputError
from viprl.tasks.search.batching import BatchingRetriever
from viprl.tasks.search.http_client import HttpRetriever, parse_result
from viprl.tasks.search.passages import Hit, Passage
from viprl.tasks.search.prefetch import PrefetchingRetriever
from viprl.tasks.search.retrievers import RetrievalError
from viprl.tasks.search.server import SearchServer, ServerLimits, check_server_settings


def until(condition):
    """Wait for something that another thread does."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Echo:
    """Returns the query as passage, top_k times; 'boom' fails, 'slow' waits for the gate."""

    def __init__(self):
        self.batches = []
        self.gate = threading.Event()

    def __len__(self):
        return 3

    def retrieve(self, queries, top_k):
        self.batches.append(list(queries))
        if any(q == "boom" for q in queries):
            raise RuntimeError("secret detail")
        if any(q == "slow" for q in queries):
            assert self.gate.wait(20)
        return [[Hit(Passage(q, "echo"), float(-i)) for i in range(top_k)] for q in queries]


@pytest.fixture
def server():
    with SearchServer(Echo()) as running:
        yield running


def client(url, **options):
    return HttpRetriever(url, **({"timeout": 20.0, "attempts": 1, "backoff": 0.0} | options))


def post(server, body, path="/retrieve", headers=None):
    connection = http.client.HTTPConnection(*server.address, timeout=20)
    connection.request("POST", path, body=body, headers=headers or {})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def test_round_trip(server):
    found = client(server.url).retrieve(["größe 日本", "b"], 2)
    assert [[h.passage.text for h in row] for row in found] == [["größe 日本"] * 2, ["b"] * 2]
    assert found[0][1].score == -1.0 and found[0][0].passage.title == "echo"
    assert client(server.url).retrieve([], 2) == []


def test_search_r1_protocol_to_the_letter(server):
    status, answer = post(server, json.dumps({"queries": ["q"], "topk": 1, "return_scores": True}))
    assert status == 200
    (((entry,),),) = (answer["result"],)
    assert entry["score"] == 0.0 and entry["document"]["contents"] == '"echo"\nq'
    status, answer = post(server, json.dumps({"queries": ["q"]}))
    assert status == 200 and len(answer["result"][0]) == 5 and answer["result"][0][0]["contents"] == '"echo"\nq'


def test_health(server):
    connection = http.client.HTTPConnection(*server.address, timeout=20)
    connection.request("GET", "/health")
    response = connection.getresponse()
    health = json.loads(response.read())
    assert response.status == 200 and health["status"] == "ok" and health["passages"] == 3
    connection.request("GET", "/nowhere")
    assert connection.getresponse().status == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"not json", 400),
        (b"[" * 100_000, 400),
        (b"[]", 400),
        (b'{"queries": "x"}', 400),
        (b'{"queries": [1]}', 400),
        (b'{"queries": ["x"], "topk": 0}', 400),
        (b'{"queries": ["x"], "topk": true}', 400),
        (b'{"queries": ["x"], "topk": 1000}', 400),
        (json.dumps({"queries": ["x" * 5000]}).encode(), 413),
        (json.dumps({"queries": ["x"] * 2000}).encode(), 413),
        (b" " * (2**20 + 1), 413),
        (b" " * 2**22, 413),
        (b'{"queries": ["boom"]}', 500),
    ],
)
def test_refused_requests_leave_the_server_alive(server, body, status):
    got, answer = post(server, body)
    assert got == status and "secret" not in answer["detail"]
    assert client(server.url).retrieve(["x"], 1)[0][0].passage.text == "x"


def test_unknown_path_and_missing_length(server):
    assert post(server, b"{}", path="/other")[0] == 404
    with socket.create_connection(server.address, timeout=20) as raw:
        raw.sendall(b"POST /retrieve HTTP/1.1\r\nHost: x\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 411")


@pytest.mark.parametrize(
    ("length", "status"),
    [("²", 411), ("+5", 411), ("0x10", 411), ("-1", 411), ("9" * 5000, 413), ("0" * 40 + "9" * 25, 413)],
)
def test_odd_content_lengths_are_refused(server, length, status):
    with socket.create_connection(server.address, timeout=20) as raw:
        raw.sendall(f"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
        raw.shutdown(socket.SHUT_WR)
        assert raw.recv(100).startswith(f"HTTP/1.1 {status}".encode())


@pytest.mark.parametrize(("port", "top_k"), [(99999, 3), (-1, 3), (8000, 0), (8000, 10**6)])
def test_what_cannot_be_served_is_refused_before_an_index_is_read(port, top_k):
    with pytest.raises(ConfigurationError, match="must hold"):
        check_server_settings(port, top_k)


def test_a_silent_client_does_not_hold_its_thread():
    with (
        SearchServer(Echo(), limits=ServerLimits(idle_seconds=0.2)) as running,
        socket.create_connection(running.address, timeout=5) as raw,
    ):
        raw.sendall(b"POST /retrieve HTTP/1.1\r\nContent-Length: 10\r\n\r\n")
        raw.settimeout(20)
        assert raw.recv(100) == b""  # closed by the server


def test_binds_to_loopback_unless_told(server):
    assert server.address[0] == "127.0.0.1"


def test_stop_lets_the_request_in_flight_finish():
    echo = Echo()
    server = SearchServer(echo).start()
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(client(server.url, timeout=20).retrieve, ["slow"], 1)
        until(lambda: echo.batches)
        threading.Timer(0.2, echo.gate.set).start()
        server.stop(grace=20)
        assert pending.result()[0][0].passage.text == "slow"
    with pytest.raises(RetrievalError, match="did not answer"):
        client(server.url).retrieve(["x"], 1)


def test_client_survives_a_restart():
    server = SearchServer(Echo()).start()
    host, port = server.address
    retriever = client(server.url, attempts=20, backoff=0.05, max_backoff=0.1)
    assert retriever.retrieve(["a"], 1)
    server.stop()
    restarted = threading.Timer(0.4, lambda: servers.append(SearchServer(Echo(), host=host, port=port).start()))
    servers = []
    restarted.start()
    assert retriever.retrieve(["b"], 1)[0][0].passage.text == "b"
    assert retriever.counts["retries"] > 0 and retriever.counts["failures"] == 0
    servers[0].stop()


def test_server_down_opens_the_breaker():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    slept = []
    now = [0.0]
    retriever = HttpRetriever(
        f"http://127.0.0.1:{port}",
        attempts=3,
        backoff=1.0,
        breaker_failures=2,
        breaker_seconds=10,
        sleep=slept.append,
        clock=lambda: now[0],
    )
    for _ in range(2):
        with pytest.raises(RetrievalError, match="3 attempts"):
            retriever.retrieve(["x"], 1)
    assert len(slept) == 4 and 1 <= slept[0] <= 1.5 and 2 <= slept[1] <= 3
    with pytest.raises(RetrievalError, match="was not sent"):
        retriever.retrieve(["x"], 1)
    assert retriever.counts["refused_by_breaker"] == 1 and len(slept) == 4
    now[0] = 11.0
    with pytest.raises(RetrievalError, match="3 attempts"):
        retriever.retrieve(["x"], 1)


class Scripted:
    """A server that answers with prepared (status, body, delay); a body (text, length) breaks off before its length."""

    def __init__(self, *answers):
        script = list(answers)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                status, body, delay = script.pop(0) if len(script) > 1 else script[0]
                time.sleep(delay)
                body, length = body if isinstance(body, tuple) else (body, len(body))
                self.close_connection = length > len(body)
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(length))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    pass

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


GOOD = json.dumps({"result": [[{"document": {"contents": "T\ntext"}, "score": 1}]]}).encode()


def test_slow_server_times_out_and_the_next_attempt_counts():
    with Scripted((200, GOOD, 1.0), (200, GOOD, 0)) as server:
        begun = time.monotonic()
        assert client(server.url, timeout=0.2, attempts=2).retrieve(["x"], 1)[0][0].passage.title == "T"
        assert time.monotonic() - begun < 2.5
    with Scripted((200, GOOD, 1.0)) as server, pytest.raises(RetrievalError, match="timed out"):
        client(server.url, timeout=0.1, attempts=2).retrieve(["x"], 1)


def test_an_answer_that_breaks_off_is_retried():
    with Scripted((200, (GOOD[:20], len(GOOD)), 0), (200, GOOD, 0)) as server:
        assert client(server.url, attempts=2).retrieve(["x"], 1)[0][0].passage.title == "T"
    with Scripted((200, (GOOD[:20], len(GOOD)), 0)) as server, pytest.raises(RetrievalError, match="did not answer"):
        client(server.url, attempts=2).retrieve(["x"], 1)


@pytest.mark.parametrize("status", [500, 503, 429])
def test_overload_is_retried_and_refusals_are_not(status):
    with Scripted((status, b"{}", 0), (200, GOOD, 0)) as server:
        assert client(server.url, attempts=2).retrieve(["x"], 1)
    with Scripted((400, b"{}", 0)) as server:
        retriever = client(server.url, attempts=5)
        with pytest.raises(RetrievalError, match="status 400"):
            retriever.retrieve(["x"], 1)
        assert retriever.counts["retries"] == 0


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b'{"result": []}',
        b'{"result": [3]}',
        b'{"result": [[3]]}',
        b'{"result": [[{"document": {}, "score": 1}]]}',
        b'{"result": [[{"document": {"text": "x"}, "score": "high"}]]}',
        b"\xff\xfe",
    ],
)
def test_another_protocol_is_an_error_of_the_retriever(body):
    with Scripted((200, body, 0)) as server, pytest.raises(RetrievalError):
        client(server.url).retrieve(["x"], 1)


def test_an_endless_answer_is_refused():
    with Scripted((200, b"x" * 100_000, 0)) as server, pytest.raises(RetrievalError, match="below 1000 bytes"):
        client(server.url, max_response_bytes=1000).retrieve(["x"], 1)


def test_results_without_scores_and_too_many():
    hits = parse_result({"result": [[{"contents": "a"}, {"contents": "b"}, {"contents": "c"}]]}, 1, 2)
    assert [h.passage.text for h in hits[0]] == ["a", "b"] and hits[0][0].score != hits[0][0].score


@pytest.mark.parametrize("url", ["ftp://x", "localhost:8000", "http://", ""])
def test_refused_addresses(url):
    with pytest.raises(InvalidInputError, match="http"):
        HttpRetriever(url)


def test_batches_form_while_the_retriever_is_busy():
    echo = Echo()
    batching = BatchingRetriever(echo)
    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(batching.retrieve, ["slow"], 1)
        until(lambda: echo.batches)
        rest = [pool.submit(batching.retrieve, [f"q{i}"], 1 + i % 3) for i in range(10)]
        until(lambda: batching._queue.qsize() == 10)
        echo.gate.set()
        assert first.result()[0][0].passage.text == "slow"
        for i, future in enumerate(rest):
            (hits,) = future.result()
            assert [h.passage.text for h in hits] == [f"q{i}"] * (1 + i % 3)
    assert [len(batch) for batch in echo.batches] == [1, 10]
    batching.close()


def test_one_bad_request_of_a_batch_fails_alone():
    echo = Echo()
    batching = BatchingRetriever(echo)
    with ThreadPoolExecutor(5) as pool:
        pool.submit(batching.retrieve, ["slow"], 1)
        until(lambda: echo.batches)
        good, bad = pool.submit(batching.retrieve, ["good"], 1), pool.submit(batching.retrieve, ["boom"], 1)
        until(lambda: batching._queue.qsize() == 2)
        echo.gate.set()
        assert good.result()[0][0].passage.text == "good"
        with pytest.raises(RuntimeError, match="secret"):
            bad.result()
    batching.close()
    with pytest.raises(RetrievalError, match="shutting down"):
        batching.retrieve(["x"], 1)


def test_prefetched_searches_run_in_parallel_and_errors_reach_the_asker():
    class Slow:
        calls = running = most = 0
        lock = threading.Lock()

        def retrieve(self, queries, top_k):
            with self.lock:
                Slow.calls += 1
                Slow.running += 1
                Slow.most = max(Slow.most, Slow.running)
            time.sleep(0.2)
            with self.lock:
                Slow.running -= 1
            if queries[0] == "bad":
                raise RetrievalError("down")
            return [[Hit(Passage(q), 1.0)] for q in queries]

    ahead = PrefetchingRetriever(Slow(), top_k=1, threads=16)
    for i in range(12):
        ahead.prefetch(f"  q  {i} ")
    ahead.prefetch("bad")
    ahead.prefetch("  ")
    assert [ahead.retrieve([f"q {i}"], 1)[0][0].passage.text for i in range(12)] == [f"q {i}" for i in range(12)]
    with pytest.raises(RetrievalError, match="down"):
        ahead.retrieve(["bad"], 1)
    assert Slow.calls == 13 and Slow.most > 4
    ahead.retrieve(["q 0"], 1)  # handed out once: this one searches
    assert Slow.calls == 14
    ahead.close()
