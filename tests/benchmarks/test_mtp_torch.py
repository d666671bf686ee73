"""The benchmark of proposals by a head, on the CPU and on small sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

from benchmarks.mtp_torch import MtpTorchSettings
from tests.benchmarks.measured import correct
from tests.benchmarks.shapes import TINY


def test_it_measures_steps_and_proposals(tmp_path: Path) -> None:
    settings = MtpTorchSettings(
        device="cpu", work=str(tmp_path), tokens=(1, 2), rows=(1, 2), prompt_tokens=9, new_tokens=12, repeats=1,
        shape=replace(TINY, mtp_pattern="*-"),
    )  # fmt: skip
    document = correct("mtp_torch", settings)
    assert len(document["gates"]) == 1
    for rows in ("1", "2"):
        ways = document["results"]["rows"][rows]
        assert set(ways) == {"plain", "1", "2"} and "proposal_us" not in ways["plain"]
        assert 0 < ways["2"]["proposal_us"]["median"] < ways["2"]["step_us"]["median"]
        assert 0 <= ways["2"]["acceptance"] <= 1
