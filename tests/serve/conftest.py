"""One artifact of the demo checkpoint and one server of it for all tests of the API."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import hybridge
from hybridge.runtime.llm import LLM
from hybridge.serve.settings import PLACEHOLDER, ModelSettings
from tests.project.test_wheel import ROOT
from tests.serve.running import Running, running
from tests.support.session_folders import session_folder

CHECKPOINT = ROOT / "examples" / "checkpoints" / "tiny-nemotron-h"
MOST_TOKENS, ROWS = 2048, 4
# As in many chat models: hermes' tags for calls, and reasoning that the prompt opens if the request says so.
TEMPLATE = """
{%- if tools %}<|system|>
{{ tools | tojson }} <tool_call>{"name": "f", "arguments": {}}</tool_call><|end|>
{% endif %}
{%- for message in messages %}<|{{ 'user' if message.role == 'tool' else message.role }}|>
{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|end|>
{% endfor %}
{%- if add_generation_prompt %}<|assistant|>
{% if thinks %}<think>
{% endif %}{% endif %}"""


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo checkpoint, paged, which all test processes share."""
    folder = session_folder(tmp_path_factory, "serve")
    out = folder / "demo"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not out.exists():
            hybridge.export(CHECKPOINT, out, layout="paged", max_seq_len=MOST_TOKENS, max_batch_size=ROWS)
    return out


@pytest.fixture(scope="session")
def demo(artifact: Path) -> ModelSettings:
    return ModelSettings("demo", artifact, preload=True, threads=1)


@pytest.fixture(scope="session")
def served(demo: ModelSettings) -> Iterator[Running]:
    """A server that tests must leave as they found it."""
    with running([demo]) as found:
        yield found


@pytest.fixture(scope="session")
def llm(artifact: Path) -> Iterator[LLM]:
    """The same model without a server: what answers have to be equal to."""
    with LLM(artifact, threads=1) as opened:
        yield opened


@pytest.fixture(scope="session")
def tooled(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of the demo model with a chat template that has tools and reasoning; images become texts."""
    folder = shutil.copytree(artifact, tmp_path_factory.mktemp("tooled") / "demo")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    with running([ModelSettings("demo", folder, preload=True, threads=1)], images=PLACEHOLDER) as found:
        yield found
