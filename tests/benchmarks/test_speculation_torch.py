"""The benchmark of speculation on a GPU, on the CPU and on small sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the torch engine needs torch")

from benchmarks.speculation_torch import OracleDrafter, SpeculationTorchSettings
from hybridge.runtime.speculation import DraftRequest
from tests.benchmarks.measured import correct
from tests.benchmarks.shapes import TINY


@pytest.mark.slow
def test_it_measures_what_the_targets_name(tmp_path: Path) -> None:
    settings = SpeculationTorchSettings(
        device="cpu", work=str(tmp_path), tokens=2, acceptances=(0.7, 0.5), prompt_tokens=9,
        new_tokens=12, passes=3, repeats=1, model=TINY,
    )  # fmt: skip
    document = correct("speculation_torch", settings)
    assert [len(document[part]) for part in ("gates", "targets")] == [1, 2]
    results = document["results"]
    fixed, adaptive = (results["acceptance"]["0.7"][name] for name in ("fixed", "adaptive"))
    assert fixed["mean_chosen"] > 1.5 and 0 < fixed["acceptance"] < 1 < fixed["tokens_per_row"]
    assert set(adaptive["rows_by_draft_tokens"]) <= {"0", "1", "2"}
    assert 0 < results["state_bytes_per_draft_token"] < results["state_bytes_of_a_snapshot"]
    assert set(results["modes"].values()) == {"replay"}
    kept = {
        way: results["acceptance"]["0.7"][way]["state_bytes_per_draft_token"] for way in results["acceptance"]["0.7"]
    }
    assert kept["fixed"] < kept["fixed mixed"] < kept["fixed snapshot"] == results["state_bytes_of_a_snapshot"]


def test_the_oracle_is_right_with_the_given_probability() -> None:
    text = list(range(100, 1100))
    oracle = OracleDrafter(text, 2000, 0.7)
    right = [
        token == text[size + place]
        for size in range(1, 990)
        for place, token in enumerate(oracle.propose([DraftRequest(0, text[:size], 4)])[0].token_ids)
    ]
    assert 0.67 < sum(right) / len(right) < 0.73
    assert oracle.propose([DraftRequest(0, text, 4)])[0].token_ids == ()
