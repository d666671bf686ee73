"""Open Responses' own compliance tests (https://github.com/openresponses/openresponses, specification of 2026-04-24).

Not passed: those of WebSockets and of /v1/responses/compact, which the server does not offer, the image test, and the
tool test, because the demo model calls no tool on its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.serve.running import Running

pytestmark = pytest.mark.slow
PASSED = (
    "basic-response",
    "assistant-phase",
    "response-output-phase-schema",
    "streaming-response",
    "system-prompt",
    "multi-turn",
)


def test_compliance(tooled: Running) -> None:
    bun, folder = shutil.which("bun"), os.environ.get("OPEN_RESPONSES")
    if bun is None or folder is None:
        pytest.skip("needs bun, and Open Responses' repository with its packages in the folder $OPEN_RESPONSES")
    command = [bun, "run", "bin/compliance-test.ts", "--json", "--filter", ",".join(PASSED), "--model", "demo"]
    command += ["--base-url", f"{tooled.server.url}/v1", "--api-key", "none"]
    ended = subprocess.run(command, cwd=Path(folder), capture_output=True, text=True, timeout=120, check=False)
    found = json.loads(ended.stdout)
    assert found["summary"]["passed"] == found["summary"]["total"] == len(PASSED), ended.stdout
