"""Two replicas on Ray Serve: the same answers, the same replica for prompts that begin alike, and the death of one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from hybridge.runtime.llm import LLM

ray = pytest.importorskip("ray", reason="needs Ray Serve: pip install 'hybridge[ray]'")
pytestmark = pytest.mark.slow
REPLICAS, LOAD, TOKENS = 2, 40, 60


@pytest.fixture(scope="module")
def client(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    from hybridge.serve.ray import RayArgs, app

    config = tmp_path_factory.mktemp("ray") / "serve.toml"
    config.write_text(f'[models.demo]\npath = "{artifact}"\npreload = true\nthreads = 1\n')
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ray.init(num_cpus=6, include_dashboard=False, log_to_driver=False, configure_logging=False)
    ray.serve.start(http_options={"host": "127.0.0.1", "port": port})
    try:
        ray.serve.run(app(RayArgs(config=str(config), replicas=REPLICAS, num_cpus=0.5)))
        yield httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=120)
    finally:
        ray.serve.shutdown()
        ray.shutdown()


def completion(client: httpx2.Client, prompt: str, **body: Any) -> Any:
    fields = {"model": "demo", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, **body}
    response = client.post("/v1/completions", json=fields)
    assert response.status_code == 200, response.text
    return response.json()


def replicas() -> list[int]:
    """The processes of the replicas."""
    found = subprocess.run(("pgrep", "-f", "^ray::ServeReplica:.*:Model"), capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def request() -> Any:
    from hybridge.serve.ray import RoutedRequest

    return RoutedRequest(" ", {"type": "http", "path": "/v1/completions", "headers": []}, b"{}")


@pytest.mark.parametrize("leaves", [True, False])
def test_an_answer_waits_for_its_reader(leaves: bool) -> None:
    """An application that writes faster than its messages are taken has to wait, and ends when the reader leaves."""
    from hybridge.serve import ray as served

    written: list[int] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        for number in range(500):
            await send({"number": number})
            written.append(number)

    async def run() -> list[int]:
        replica = object.__new__(served.ModelReplica)
        replica._app = application  # type: ignore[assignment]
        answer = replica.answer(request())
        found = [(await anext(answer))["number"]]
        for _ in range(1000):
            await asyncio.sleep(0)
        assert len(written) <= served._MESSAGES + 1
        if leaves:
            await asyncio.wait_for(answer.aclose(), 30)  # type: ignore[attr-defined]
            return found
        return found + [message["number"] async for message in answer]

    assert asyncio.run(run()) == ([0] if leaves else list(range(500))) and len(written) == 500


def test_a_full_queue_in_front_of_the_replicas() -> None:
    from ray.serve.exceptions import BackPressureError

    from hybridge.serve.errors import ApiError
    from hybridge.serve.ray import ForwardingApp
    from hybridge.serve.settings import ServeSettings

    class Replicas:
        """A handle whose queue is full."""

        answer = property(lambda self: self)

        def options(self, stream: bool) -> Replicas:
            return self

        async def remote(self, request: object) -> AsyncIterator[Any]:
            raise BackPressureError(num_queued_requests=1, max_queued_requests=1)
            yield

    async def send(message: Any) -> None:
        raise AssertionError("nothing must be sent")

    with pytest.raises(ApiError) as refused:
        asyncio.run(ForwardingApp(Replicas(), ServeSettings())._forward(request(), send))
    assert refused.value.status_code == 429 and refused.value.retry_after == 1


def test_requests_in_an_ingress_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from hybridge.serve import ray as served
    from hybridge.serve.settings import ServeSettings

    monkeypatch.setattr(served, "_FORWARDED", 1)
    sent: list[list[Any]] = [[], [], []]
    free = asyncio.Event()

    class Replicas:
        """A handle whose answers wait for ``free``."""

        answer = property(lambda self: self)

        def options(self, stream: bool) -> Replicas:
            return self

        async def remote(self, request: object) -> AsyncIterator[Any]:
            await free.wait()
            yield {"type": "http.response.start", "status": 200}
            yield {"type": "http.response.body"}

    async def run() -> None:
        app = served.ForwardingApp(Replicas(), ServeSettings())
        scope = {"type": "http", "path": "/v1/completions", "headers": []}

        async def receive() -> Any:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        def requested(number: int) -> Any:
            async def send(message: Any) -> None:
                sent[number].append(message)

            return app(dict(scope), receive, send)

        first = asyncio.ensure_future(requested(0))
        await asyncio.sleep(0)
        await requested(1)
        free.set()
        await first
        await requested(2)

    asyncio.run(run())
    assert [messages[0]["status"] for messages in sent] == [200, 429, 200]
    assert (b"retry-after", b"1") in sent[1][0]["headers"]


def test_answers_streams_and_errors(client: httpx2.Client, llm: LLM) -> None:
    expected = llm.generate("The sea", max_new_tokens=TOKENS).text
    assert completion(client, "The sea")["choices"][0]["text"] == expected
    body = {"model": "demo", "prompt": "The sea", "max_tokens": TOKENS, "temperature": 0, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]" and len(lines) > TOKENS / 4
    assert "".join(json.loads(line)["choices"][0]["text"] for line in lines) == expected
    assert client.get("/v1/models").json()["data"][0]["id"] == "demo"
    for bad, status in (({"model": "other", "prompt": "a"}, 404), ({"model": "demo", "prompt": 1.5}, 400)):
        refused = client.post("/v1/completions", json=bad)
        assert refused.status_code == status and refused.json()["error"]["message"]
    assert client.post("/v1/completions", content=b"{").status_code == 400


def test_prompts_that_begin_alike_meet_one_cache(client: httpx2.Client) -> None:
    """Also where many prompts share the two replicas."""
    texts = [
        f"{name} set out to sea in the spring of that year with the fleet, " * 2
        for name in ("Ahab", "Queequeg", "Starbuck", "Stubb")
    ]
    for text in texts:
        completion(client, text, max_tokens=4)
    for turn in range(3):
        for text in texts:
            usage = completion(client, f"{text}and turn {turn}", max_tokens=4)["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] > 0, (turn, text)


def test_no_request_is_lost_when_a_replica_dies(client: httpx2.Client, llm: LLM) -> None:
    prompts = [f"Ship {number} of the fleet" for number in range(LOAD)]
    expected = [answer.text for answer in llm.generate(prompts, max_new_tokens=TOKENS)]
    before = replicas()
    assert len(before) == REPLICAS
    with ThreadPoolExecutor(LOAD) as pool:
        answering = [pool.submit(completion, client, prompt) for prompt in prompts]
        while not any(future.done() for future in answering):
            time.sleep(0.005)
        os.kill(before[0], signal.SIGKILL)
        found = [future.result()["choices"][0]["text"] for future in answering]
    assert found == expected
    end = time.monotonic() + 60
    while len(set(replicas()) - set(before)) < 1:
        assert time.monotonic() < end, "no new replica was started"
        time.sleep(0.2)
