"""OpenAI's official client for node reads what the server writes."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from hybridge.runtime.llm import LLM
from hybridge.serve.settings import ModelSettings
from tests.serve.conftest import TEMPLATE
from tests.serve.running import running

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("openai_client.mjs")


@pytest.fixture(scope="module")
def package() -> Path:
    """The folder of the client."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs node and npm")
    root = subprocess.run((npm, "root", "--global"), capture_output=True, text=True, check=True).stdout.strip()
    found = Path(root) / "openai"
    if not found.is_dir():
        pytest.skip("needs OpenAI's client for node: npm install --global openai")
    return found


def test_every_endpoint(package: Path, artifact: Path, llm: LLM, tmp_path: Path) -> None:
    folder = shutil.copytree(artifact, tmp_path / "demo")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    with running([ModelSettings("demo", folder, preload=True, threads=1, embeddings=True)]) as served:
        command = ("node", str(SCRIPT), str(package), f"{served.server.url}/v1")
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert ended.returncode == 0, ended.stderr
        found = json.loads(ended.stdout)
        assert found["completion"] == llm.generate("The sea", max_new_tokens=8).text
        message = {"role": "user", "content": "What is the sea?"}
        body = served.post("/v1/chat/completions", messages=[message], max_tokens=8)
        assert found["chat"] == found["response"] == body["choices"][0]["message"]["content"]
        for name in ("completion", "chat", "response"):
            assert found[f"{name}Stream"] == found[name] != ""
        assert isinstance(found["call"]["far"], bool) and found["models"] == ["demo"]
        assert abs(found["norm"] - 1) < 1e-5 and found["error"] == [404, "model_not_found", "model"]
