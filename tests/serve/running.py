"""A server in a thread of this process, and a client of it."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from hybridge.serve.api_keys import ApiKeys
from hybridge.serve.request_log import RequestLog
from hybridge.serve.served_model import ServedModel
from hybridge.serve.server import HttpServer
from hybridge.serve.settings import ModelSettings, ServeSettings

PATIENCE = 60.0
# The first server may have to compile the CPU kernels.
START = 240.0


@dataclass(eq=False)
class Running:
    """``errors``: what ended the server's thread."""

    server: HttpServer
    client: httpx2.Client
    log: io.StringIO
    thread: threading.Thread | None = None
    errors: list[BaseException] = field(default_factory=list)

    def model(self, name: str = "demo") -> ServedModel:
        return next(each for each in self.server.service.store.loaded if each.name == name)

    def post(self, path: str, **body: Any) -> Any:
        """The JSON of a response that has to be good."""
        response = self.client.post(path, json={"model": "demo", **body})
        assert response.status_code == 200, response.text
        return response.json()

    def refusal(self, path: str, status: int, **body: Any) -> Any:
        """The error of a response, in OpenAI's shape."""
        response = self.client.post(path, json={"model": "demo", **body})
        assert response.status_code == status, response.text
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    def events(self, path: str, **body: Any) -> list[Any]:
        """The data of all events but the last, which has to be [DONE]."""
        with self.client.stream("POST", path, json={"model": "demo", "stream": True, **body}) as response:
            assert response.status_code == 200
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
        assert lines.pop() == "[DONE]"
        return [json.loads(line) for line in lines]

    def lines(self, event: str) -> list[Any]:
        """Lines of the log."""
        return [line for text in self.log.getvalue().splitlines() if (line := json.loads(text))["event"] == event]


def until(condition: Any, seconds: float = PATIENCE) -> None:
    """Wait until ``condition()``."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


@contextmanager
def running(
    models: Sequence[ModelSettings],
    keys: ApiKeys | None = None,
    waits: bool = True,
    owns_process: bool = False,
    **settings: Any,
) -> Iterator[Running]:
    """A server of ``models`` on a free port; it has to end when it is told to."""
    log = io.StringIO()
    server = HttpServer(ServeSettings(port=0, **settings), models, keys, RequestLog(False, log))
    found = Running(server, httpx2.Client(base_url=server.url, timeout=PATIENCE), log)

    def run() -> None:
        try:
            server.run(owns_process)
        except BaseException as error:
            found.errors.append(error)

    found.thread = threading.Thread(target=run)
    found.thread.start()
    try:
        if waits:
            until(lambda: found.errors or found.client.get("/health").status_code == 200, START)
            assert not found.errors, found.errors
        yield found
    finally:
        found.client.close()
        server.stop()
        found.thread.join(PATIENCE)
        assert not found.thread.is_alive()
