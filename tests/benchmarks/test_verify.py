"""The document of what verify finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import verify
from benchmarks.verify import VerifySettings
from tests.benchmarks.measured import document


def test_a_checkpoint_that_is_not_verified_closes_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    def verified(checkpoint: Path, out: Path) -> dict[str, Any]:
        return {"passed": checkpoint.name != "tiny-qwen3-next", "peak_over_float32": 1.7}

    monkeypatch.setattr(verify, "verified", verified)
    monkeypatch.setattr(verify, "write_random_checkpoint", lambda *_: pytest.fail("a checkpoint was written"))
    found = document("verify", VerifySettings(case="tiny"))
    assert not found["correct"] and found["gates"][0]["value"] == 1
    assert found["results"]["tiny-nemotron-h"] == {"passed": True, "peak_over_float32": 1.7}
    assert [target["met"] for target in found["targets"]] == [False, False]
