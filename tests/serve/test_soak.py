"""Many requests, a third of which is cancelled: nothing is lost, and each answer is that of its prompt alone.

HYBRIDGE_TEST_EFFORT=fuzz HYBRIDGE_FUZZ_SCALE=17 makes 10,200 requests.
"""

from __future__ import annotations

import json
import random
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hybridge.serve.settings import ModelSettings
from tests.serve.running import Running, running, until
from tests.support.effort import examples

pytestmark = pytest.mark.slow
PATH = "/v1/completions"
REQUESTS, CONNECTIONS = examples(600), 200
PROMPTS = [f"The sea has {number} ships and" for number in range(20)]
PAGE = 4096


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def answer(served: Running, prompt: str, stream: bool, leaves: bool) -> str:
    """The text; a client that ``leaves`` reads two events of it."""
    host, port = served.server.url.removeprefix("http://").split(":")
    fields = {"prompt": prompt, "max_tokens": 100 if leaves else 8, "stream": stream}
    body = json.dumps({"model": "demo", **fields}).encode()
    head = f"POST {PATH} HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    data = b""
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(head.encode() + body)
        while (part := connection.recv(1 << 16)) and not (leaves and data.count(b"data: ") >= 2):
            data += part
    if not stream:
        found = json.loads(data.partition(b"\r\n\r\n")[2])["choices"][0]["text"]
        assert isinstance(found, str)
        return found
    events = [json.loads(line[6:]) for line in data.decode(errors="replace").splitlines() if line.endswith("]}")]
    return "".join(event["choices"][0]["text"] for event in events)


def test_a_third_of_all_clients_leaves(demo: ModelSettings) -> None:
    with running([demo], max_waiting=REQUESTS) as served:
        alone = {prompt: answer(served, prompt, False, False) for prompt in PROMPTS}
        random_number = random.Random(4)
        work = [(random_number.choice(PROMPTS), random_number.random() < 0.5, n % 3 == 0) for n in range(REQUESTS)]

        def check(prompt: str, stream: bool, leaves: bool) -> bool:
            found = answer(served, prompt, stream or leaves, leaves)
            return leaves or found == alone[prompt]

        sizes = []
        with ThreadPoolExecutor(CONNECTIONS) as clients:
            for half in (work[: REQUESTS // 2], work[REQUESTS // 2 :]):
                assert all(clients.map(lambda each: check(*each), half))
                sizes.append(resident_bytes())
        model = served.model()
        until(lambda: model.running == 0 and not model.llm.loop.busy)
        scheduler = model.llm.loop.scheduler
        scheduler.check_integrity()
        assert not scheduler.sequences and scheduler.manager.rows.free == model.llm.max_batch_size
        assert served.server.service.streams == 0
        assert sizes[1] < 1.03 * sizes[0]
