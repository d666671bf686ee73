"""The command in a process of its own, and clients that stop reading."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx2
import pytest

from hybridge.serve.settings import ModelSettings
from tests.serve.running import running, until

pytestmark = pytest.mark.slow
CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "What is the sea?"}]


def test_sigterm_lets_a_stream_end(artifact: Path) -> None:
    arguments = ["serve", str(artifact), "--port", "0", "--threads", "1"]
    code = "import sys; from hybridge.cli.main import main; sys.argv[0] = 'hybridge'; main()"
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    url = json.loads(process.stderr.readline())["url"]
    assert json.loads(process.stderr.readline())["event"] == "ready"
    rest: list[str] = []
    reader = threading.Thread(target=lambda: rest.extend(process.stderr or ()))
    reader.start()
    body = {"model": "demo", "messages": USER, "max_tokens": 400, "ignore_eos": True, "stream": True}
    with httpx2.stream("POST", url + CHAT, json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        assert list(lines)[-2] == "data: [DONE]"
    assert process.wait(60) == 0
    reader.join()
    events = [json.loads(line)["event"] for line in rest]
    assert events[0] == "draining" and events[-1] == "stopped"
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(url)


def test_a_client_that_stops_reading_ends_its_request(demo: ModelSettings) -> None:
    with running([demo], send_timeout=1) as served:
        fields = {"logprobs": True, "top_logprobs": 20, "n": 4, "max_tokens": 2000, "ignore_eos": True, "stream": True}
        text = json.dumps({"model": "demo", "messages": USER, **fields}).encode()
        head = f"POST {CHAT} HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
        host, port = served.server.url.removeprefix("http://").split(":")
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with connection:
            connection.connect((host, int(port)))
            connection.sendall(head.encode() + text)
            # Linux ends the connection before its buffers are full, so the server need not find that the client stalls.
            until(lambda: served.lines("request"))
            until(lambda: served.model().running == 0)
        (ended,) = served.lines("request")
        assert ended["abandoned_tokens"] > 0
        steps = served.model().llm.loop.steps
        assert steps < 1900
        assert served.post("/v1/completions", prompt="The sea", max_tokens=3)["choices"]
