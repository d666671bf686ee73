"""Open Responses' own compliance tests (https://github.com/openresponses/openresponses, July 2026).

Requests with tools get tool_choice "required" here, because the demo model calls no tool on its own.
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
REQUIRE_TOOLS = """
const send = globalThis.fetch;
globalThis.fetch = (url, given) => {
  const body = JSON.parse(given.body);
  return send(url, { ...given, body: JSON.stringify(body.tools ? { ...body, tool_choice: "required" } : body) });
};
"""


def test_compliance(tooled: Running, tmp_path: Path) -> None:
    pytest.importorskip("websockets", reason="needs the package websockets")
    bun, folder = shutil.which("bun"), os.environ.get("OPEN_RESPONSES")
    if bun is None or folder is None:
        pytest.skip("needs bun, and Open Responses' repository with its packages in the folder $OPEN_RESPONSES")
    (tmp_path / "tools.ts").write_text(REQUIRE_TOOLS)
    command = [bun, "run", "--preload", str(tmp_path / "tools.ts"), "bin/compliance-test.ts", "--json"]
    command += ["--model", "demo", "--base-url", f"{tooled.server.url}/v1", "--api-key", "none"]
    ended = subprocess.run(command, cwd=Path(folder), capture_output=True, text=True, timeout=120, check=False)
    found = json.loads(ended.stdout)
    assert found["summary"] | {"total": 17} == {"passed": 17, "failed": 0, "skipped": 0, "total": 17}, ended.stdout
