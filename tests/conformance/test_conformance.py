"""Conformance runs against servers with known faults: each is found in the scenarios that meet it, and nothing else."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hybridge.artifact.progress import NoProgress
from hybridge.conformance.client import ServerError
from hybridge.conformance.comparison import FAILED, TIE
from hybridge.conformance.options import ConformanceOptions
from hybridge.conformance.report import ConformanceReport
from hybridge.conformance.run import run_conformance
from tests.cli.command import hybridge

OPTIONS = ConformanceOptions(prompts=7, batch=4, max_tokens=5, longest=70)
SALTED = "again"
KEY = "secret"


class Server:
    """Answers made of a hash of the prompt. ``change``: what a fault makes of the words of an answer."""

    def __init__(
        self, change: Callable[[Server, dict[str, Any], list[str]], list[str]] = lambda _, __, words: words
    ) -> None:
        self.change = change
        self.gap, self.logprobs, self.longest = 1.0, True, 10**9
        self.running, self.most, self.abandoned = 0, 0, 0
        self.lock = threading.Lock()
        self.seen: list[str] = []
        self.salts: list[str] = []

    def choices(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        prompt = body["prompt"]
        digest = sha256(prompt.encode()).hexdigest()
        words = [f" {digest[4 * index : 4 * index + 4]}" for index in range(body["max_tokens"])]
        found = []
        for index in range(body.get("n", 1)):
            own = self.change(self, {**body, "index": index}, list(words))
            choice: dict[str, Any] = {"index": index, "text": "".join(own)}
            if body.get("logprobs"):
                tops = [{word: -0.5, "other": -0.5 - self.gap} for word in own]
                choice["logprobs"] = {"tokens": own, "top_logprobs": tops}
            found.append(choice)
        return found[::-1]


class Handler(BaseHTTPRequestHandler):
    server: Any

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        self.answer(200, {"data": [{"id": "model"}]})

    def do_POST(self) -> None:
        state: Server = self.server.state
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers["Authorization"] != f"Bearer {KEY}":
            return self.answer(401, {"error": "no key"})
        if body.get("logprobs") and not state.logprobs:
            return self.answer(400, {"error": "no logprobs"})
        if len(body["prompt"]) > state.longest:
            return self.answer(400, {"error": "too long"})
        if body.get("stream"):
            state.abandoned += 1
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"data: {}\n\ndata: {}\n\n")
            return None
        with state.lock:
            state.running += 1
            state.most = max(state.most, state.running)
        time.sleep(0.002)
        choices = state.choices(body)
        with state.lock:
            state.running -= 1
            state.seen.append(body["prompt"])
            state.salts.append(body.get("cache_salt", ""))
        usage = {"prompt_tokens_details": {"cached_tokens": 3}}
        return self.answer(200, {"choices": choices, "usage": usage})

    def answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def running(state: Server) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.state = state  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def report_of(state: Server, options: ConformanceOptions = OPTIONS) -> ConformanceReport:
    with running(state) as url:
        return run_conformance(url, KEY, options, NoProgress())


def test_a_right_server_passes() -> None:
    state = Server()
    report = report_of(state)
    assert report.passed and not report.findings and not report.notes
    assert [each.name for each in report.scenarios][:3] == ["again", "2 at a time, seen", "4 at a time, seen"]
    assert all(each.equal == each.answers >= OPTIONS.prompts for each in report.scenarios)
    assert state.abandoned == OPTIONS.prompts and 1 < state.most <= OPTIONS.batch
    # Every prompt was once sent alone with a salt of its own.
    lone = [salt for salt in state.salts if salt.startswith("alone")]
    assert len(lone) == len(set(lone)) >= 5 * OPTIONS.prompts


def leaks(state: Server, body: dict[str, Any], words: list[str]) -> list[str]:
    """The third word is wrong while another request runs."""
    return [*words[:2], " leaked", *words[3:]] if state.running > 1 else words


def stale(state: Server, body: dict[str, Any], words: list[str]) -> list[str]:
    """A prompt that was seen before gets another answer, unless it has a salt."""
    return words[:-1] if body["prompt"] in state.seen and not body.get("cache_salt") else words


def edited(state: Server, body: dict[str, Any], words: list[str]) -> list[str]:
    """A prompt that leaves a known one within its words gets another answer."""
    known, prompt = list(state.seen), body["prompt"]
    leaves = prompt not in known and any(prompt[:20] == each[:20] for each in known)
    return words[::-1] if leaves and not body.get("cache_salt") else words


def unequal(state: Server, body: dict[str, Any], words: list[str]) -> list[str]:
    """The last of several answers differs."""
    return [" x", *words[1:]] if body["index"] == 3 else words


@pytest.mark.parametrize(
    ("change", "blamed", "spared"),
    [
        (leaks, {"4 at a time, seen", "new, together"}, {"again"}),
        (stale, {"again", "4 at a time, seen", "4 answers"}, {"new, together", "continued", "edited"}),
        (edited, {"shared prefix", "continued", "edited"}, {"again", "new, together", "4 answers"}),
        (unequal, {"4 answers"}, {"again", "new, together", "edited", "disconnects"}),
    ],
)
def test_a_fault_is_found_where_it_shows(change: Any, blamed: set[str], spared: set[str]) -> None:
    report = report_of(Server(change))
    wrong = {each.name for each in report.scenarios if each.different}
    assert not report.passed and blamed <= wrong and not spared & wrong
    assert all(each.different + each.equal == each.answers for each in report.scenarios)


def test_a_difference_after_a_tie_is_told_apart() -> None:
    state = Server(stale)
    state.change = lambda server, body, words: (
        [*words[:3], " tie", *words[4:]] if stale(server, body, words) != words else words
    )
    state.gap = 0.005
    report = report_of(state)
    assert report.passed and {each.verdict for each in report.findings} == {TIE}
    assert {each.position for each in report.findings} == {3}
    assert all(each.gap == pytest.approx(0.005) for each in report.findings)
    state.gap = 0.02
    assert not report_of(state).passed


def test_servers_without_options_and_with_limits() -> None:
    state = Server(leaks)
    state.logprobs, state.longest = False, 200
    report = report_of(state)
    assert not report.passed and "no logprobs" in report.notes[0]
    # Prompts beyond the limit are left out of all scenarios but the one that makes its own.
    assert {each.name for each in report.scenarios if each.failed} <= {
        "new, together",
        "continued",
        "edited",
        "disconnects",
        "shared prefix",
    }
    assert all("too long" in each.found for each in report.findings if each.verdict == FAILED)
    state.longest = 10
    with pytest.raises(ServerError, match="too long"):
        report_of(state)


def test_command(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(f"{KEY}\n")
    options = ("--prompts", "2", "--batch", "2", "--max-tokens", "4", "--longest", "20", "--api-key-file", key)
    with running(Server(unequal)) as url:
        found = hybridge(capfd, "conformance", url, *options, "--json")
        assert found.code == 1 and found.document["passed"] is False and found.document["model"] == "model"
        table = hybridge(capfd, "conformance", url, *options)
        assert table.code == 1 and "not passed" in table.out and "different from position 0" in table.out
        refused = hybridge(capfd, "conformance", url, "--prompts", "2")
        assert refused.code == 2 and "status 401" in refused.error
    gone = hybridge(capfd, "conformance", url, *options)
    assert gone.code == 2 and "is the server running?" in gone.error
    assert hybridge(capfd, "conformance", "file:///etc/passwd").code == 2
    key.write_text("two\nlines")
    assert "--api-key-file" in hybridge(capfd, "conformance", url, *options).error
