"""Open Responses' own compliance tests (https://github.com/openresponses/openresponses, specification of 2026-04-24).

Requests with tools get tool_choice "required" here, because the demo model calls no tool on its own. The test with an
image has to be refused: models read only text.
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
    failed = {each["id"]: each["response"] for each in found["results"] if each["status"] != "passed"}
    assert list(failed) == ["image-input"] and found["summary"]["passed"] == 16, ended.stdout
    assert failed["image-input"]["error"]["message"].endswith("models read only text")
