"""The server around the API: keys, limits, disconnects and shutdown."""

from __future__ import annotations

import gc
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hybridge.artifact.errors import ArtifactError, OutputError, SettingError
from hybridge.serve import event_stream
from hybridge.serve.api_keys import ApiKeys
from hybridge.serve.server import HttpServer
from hybridge.serve.settings import ModelSettings, ServeSettings
from tests.serve.running import PATIENCE, Running, running, until

PATH = "/v1/completions"


class Gate:
    """Lets the steps of a loop run one by one."""

    def __init__(self, served: Running, patch: pytest.MonkeyPatch) -> None:
        self._loop = served.model().llm.loop
        self._step, self._allowed = self._loop.step, threading.Semaphore(0)
        patch.setattr(self._loop, "step", self._gated)
        self.free = False

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        """Also after a failure: the server ends with its steps."""
        self.free = True

    def _gated(self, *arguments: object) -> object:
        while not self.free and not self._allowed.acquire(timeout=0.01):
            pass
        return self._step(*arguments)

    def allow(self, steps: int) -> None:
        self._allowed.release(steps)

    @property
    def steps(self) -> int:
        return self._loop.steps


@pytest.fixture
def gate(served: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    until(lambda: not served.model().llm.loop.busy)
    with Gate(served, monkeypatch) as made:
        yield made


def leave(served: Running, body: dict, reads: int, following: bytes = b"") -> None:
    """Send a request, read until the response has ``reads`` lines of data, send ``following``, and close."""
    host, port = served.server.url.removeprefix("http://").split(":")
    text = json.dumps({"model": "demo", **body}).encode()
    kind = "content-type: application/json\r\nhost: localhost"
    head = f"POST {PATH} HTTP/1.1\r\n{kind}\r\ncontent-length: {len(text)}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall(head.encode() + text)
        found, end = b"", time.monotonic() + PATIENCE
        while found.count(b"data: ") < reads:
            found += connection.recv(1 << 16)
            assert time.monotonic() < end, found  # pings go on without data
        connection.sendall(following)
        until(lambda: served.model().running == 1)


@pytest.mark.parametrize(("stream", "following"), [(True, b""), (False, b""), (True, b"GET /health HTTP/1.1\r\n\r\n")])
def test_computing_stops_within_a_step_when_the_client_leaves(
    served: Running, gate: Gate, stream: bool, following: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # While no step runs, only a ping finds out that the client has left.
    monkeypatch.setattr(event_stream, "_PING_SECONDS", 0.1)
    gate.allow(3)
    # Greedy: a sampled token may have no text. One line: it may hold all of the tokens.
    body = {"prompt": "The sea", "max_tokens": 400, "temperature": 0, "stream": stream}
    leave(served, body, 1 if stream else 0, following)
    until(lambda: served.model().running == 0)  # the server has noticed
    steps = gate.steps
    gate.free = True
    until(lambda: not served.model().llm.loop.busy)
    assert gate.steps <= steps + 2  # the step in progress, and one that had been planned
    until(lambda: any("abandoned_tokens" in line for line in served.lines("request")))
    assert served.post(PATH, prompt="The sea", max_tokens=2)["choices"]


def test_a_full_queue_refuses_with_the_time_until_a_row_is_free(
    demo: ModelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running([demo], max_waiting=0) as served, Gate(served, monkeypatch) as gate:
        rows = served.model().llm.max_batch_size
        threads = [
            threading.Thread(target=served.post, args=(PATH,), kwargs={"prompt": f"a{i}", "max_tokens": 20})
            for i in range(rows)
        ]
        for thread in threads:
            thread.start()
        until(lambda: served.model().running == rows)
        gate.free = True
        gate.allow(1)
        response = served.client.post(PATH, json={"model": "demo", "prompt": "b", "max_tokens": 1})
        for thread in threads:
            thread.join()
        if response.status_code == 200:  # all had ended
            pytest.fail("expected a full queue")
        assert response.status_code == 429 and response.json()["error"]["code"] == "queue_full"
        assert int(response.headers["retry-after"]) >= 1


def test_urgent_requests_run_first(served: Running, gate: Gate) -> None:
    """All rows are taken; of two requests that wait, the one that came later is the more urgent one."""
    ended: list[str] = []

    def post(name: str, tokens: int, priority: int) -> None:
        served.post(PATH, prompt=f"The sea {name}", max_tokens=tokens, priority=priority)
        ended.append(name)

    threads = []
    for number in range(served.model().llm.max_batch_size):
        threads.append(threading.Thread(target=post, args=(f"first {number}", 90 if number else 10, -9)))
    for name, priority in (("later", 5), ("sooner", 4)):
        threads.append(threading.Thread(target=post, args=(name, 30, priority)))
    for running_count, thread in enumerate(threads, 1):
        thread.start()
        until(lambda count=running_count: served.model().running == count)
    gate.free = True
    for thread in threads:
        thread.join()
    assert ended.index("sooner") < ended.index("later")


def test_keys_are_required_and_share_no_prefix(demo: ModelSettings, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# clients\nann key-of-ann\nkey-of-bob\neve key-of-eve 120\n")
    with running([demo], ApiKeys.from_file(file), requests_per_minute=3) as served:
        body = {"model": "demo", "prompt": "Long enough a prompt to be found again, or not.", "max_tokens": 1}

        def post(**headers: str) -> tuple[int, object]:
            response = served.client.post(PATH, json=body, headers=headers)
            found = response.json()
            return response.status_code, found.get("usage", found)

        for headers in ({}, {"authorization": "Bearer nonsense"}, {"authorization": "Basic key-of-ann"}):
            status, error = post(**headers)
            assert status == 401 and error["error"]["code"] == "invalid_api_key"
        ann, bob = {"authorization": "Bearer key-of-ann"}, {"x-api-key": "key-of-bob"}
        cached = [post(**each)[1]["prompt_tokens_details"]["cached_tokens"] for each in (ann, ann, bob)]
        assert cached[0] == cached[2] == 0 < cached[1]
        assert post(**ann)[0] == 200
        response = served.client.post(PATH, json=body, headers=ann)
        assert response.status_code == 429 and int(response.headers["retry-after"]) in range(1, 61)
        assert post(**bob)[0] == 200
        assert served.client.get("/health").status_code == served.client.get("/metrics").status_code == 200
        urgent = served.client.post(PATH, json={**body, "priority": -1}, headers=bob)
        assert urgent.status_code == 400 and urgent.json()["error"]["param"] == "priority"
        eve = {"authorization": "Bearer key-of-eve"}
        assert post(**eve)[0] == 200
        beyond = served.client.post(PATH, json={**body, "max_tokens": 120}, headers=eve)
        assert beyond.status_code == 429 and beyond.json()["error"]["code"] == "insufficient_quota"
        assert post(**eve)[0] == 200  # nothing was reserved for the refused request
        names = [line.get("client", "") for line in served.lines("request")]
        assert names.count("ann") == 4 and names.count("") == 3
        assert sum(name.startswith("key-") for name in names) == 3
        assert "prompt to be found" not in served.log.getvalue() and "key-of" not in served.log.getvalue()


def test_tokens_of_clients_that_leave_count(demo: ModelSettings) -> None:
    with running([demo], tokens_per_minute=20) as served:
        leave(served, {"prompt": "The sea", "max_tokens": 400, "ignore_eos": True, "stream": True}, 30)
        until(lambda: served.model().running == 0)
        assert served.refusal(PATH, 429, prompt="The sea")["code"] == "rate_limit_exceeded"
        assert 'hybridge_answers_total{model="demo",reason="abandoned"} 1.0' in served.client.get("/metrics").text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "short",
        "a b c-long-enough",
        "ann key-of-ann x",
        "ann key-of-ann 1 2",
        "ann key-of-ann\nann key-of-bob",
        "key-of-ann\nkey-of-ann",
    ],
)
def test_bad_files_of_keys(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(SettingError, match="expected"):
        ApiKeys.from_file(tmp_path / "keys")


def test_limits_of_bodies_and_of_time(demo: ModelSettings) -> None:
    with running([demo], max_body_bytes=1000, receive_timeout=1, request_timeout=1) as served:
        assert served.refusal(PATH, 413, prompt="a" * 2000)["message"].startswith("body: ")
        response = served.client.post(PATH, content=iter([b"{" + b" " * 600, b" " * 600]))
        assert response.status_code == 413
        host, port = served.server.url.removeprefix("http://").split(":")
        for start, status in (
            (b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{", b"408"),
            (b"GET /he", b""),
        ):
            with socket.create_connection((host, int(port)), timeout=60) as connection:
                connection.sendall(start)
                assert connection.recv(1 << 16)[9:12] == status
        with pytest.MonkeyPatch.context() as patch, Gate(served, patch):
            error = served.refusal(PATH, 408, prompt="The sea", max_tokens=400, timeout=0.2)
            assert error["type"] == "timeout_error"
        # A limit that is over before the prompt has been read: nothing is computed.
        steps = served.model().llm.loop.steps
        served.refusal(PATH, 408, prompt="The sea", max_tokens=400, timeout=5e-324)
        assert served.model().llm.loop.steps <= steps + 2


def test_running_requests_end_after_the_server_was_stopped(
    demo: ModelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running([demo]) as served, Gate(served, monkeypatch) as gate:
        found: list = []
        thread = threading.Thread(
            target=lambda: found.append(served.events(PATH, prompt="The sea", max_tokens=30, stop_token_ids=[]))
        )
        gate.allow(2)
        thread.start()
        until(lambda: served.model().running == 1)
        served.server.stop()
        until(lambda: served.server.service.draining)
        gate.free = True
        thread.join()
        assert len(found) == 1 and found[0][-1]["choices"][0]["finish_reason"] == "length"
        served.thread.join(60)
        assert not served.thread.is_alive() and not served.errors
        assert [line["event"] for line in map(json.loads, served.log.getvalue().splitlines())][-1] == "stopped"


def test_what_is_loaded_at_the_start_is_left_out_of_garbage_collections(
    demo: ModelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    with running([replace(demo, preload=False)], owns_process=True) as served:
        until(lambda: served.lines("ready"))
    assert frozen == [True]


def test_the_schema_names_streams(served: Running) -> None:
    paths = served.client.get("/openapi.json").json()["paths"]
    for path in (PATH, "/v1/chat/completions", "/v1/responses", "/v1/messages"):
        assert set(paths[path]["post"]["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}


def test_health_follows_the_engine(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    model = served.model()
    monkeypatch.setattr(model, "failed", True)
    assert served.client.get("/health/ready").status_code == 200 and not model.failed  # it can compute a token
    until(lambda: not model.llm.loop.busy)
    monkeypatch.setattr(model.llm.engine, "launch", lambda *a, **k: 1 / 0)
    error = served.refusal(PATH, 500, prompt="The sea")
    assert error["type"] == "server_error" and model.failed
    assert served.client.get("/health").status_code == 503
    assert served.client.get("/health/live").status_code == 200
    monkeypatch.undo()
    assert served.client.get("/health").status_code == 200


def test_what_cannot_be_served(tmp_path: Path, demo: ModelSettings) -> None:
    with pytest.raises(ArtifactError):
        HttpServer(ServeSettings(port=0), [ModelSettings("x", tmp_path)])
    with pytest.raises(SettingError, match="once"):
        HttpServer(ServeSettings(port=0), [demo, demo])
    with pytest.raises(SettingError, match="host"):
        HttpServer(ServeSettings(host="256.1.1.1"), [demo])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OutputError, match="free"):
            HttpServer(ServeSettings(port=taken.getsockname()[1]), [demo])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs TCP_USER_TIMEOUT of Linux")
def test_a_client_that_takes_no_data_is_disconnected(demo: ModelSettings) -> None:
    """Also where the response has ended, and the connection only waits to be closed."""
    with running([demo], send_timeout=1) as served, socket.socket() as client:
        connections = served.server._server.server_state.connections
        before = len(connections)
        host, port = served.server.url.removeprefix("http://").split(":")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, int(port)))
        for _ in range(100):
            client.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n")
        until(lambda: len(connections) > before)
        until(lambda: len(connections) <= before)
