"""Steps of draft tokens against transformers, for each kind of recurrent layer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridge.verification.options import VerifyOptions
from hybridge.verification.report import VerifyReport
from hybridge.verification.verifier import verify
from tests.support.artifacts import ArtifactCache
from tests.support.effort import sample

OPTIONS = VerifyOptions(prompt_lengths=(1, 7), decode_steps=7, tolerance=2e-5, speculative_tokens=3)


# On push each recurrent operator with one engine; runtime/engines/test_rollback.py has both operators with both.
@pytest.mark.parametrize(
    "model_type",
    sample(
        (
            "jamba",
            "kimi_linear",
            "lfm2",
            "mamba",
            "mamba2",
            "nemotron_h",
            "qwen3_next",
            "recurrent_gemma",
            "zamba",
            "zamba2",
        ),
        ("nemotron_h",),
    ),
)
def test_accepted_draft_tokens_agree_with_transformers(model_type: str, artifacts: ArtifactCache) -> None:
    exported = artifacts.get(model_type, "float32", layout="paged")
    report = verify(exported.checkpoint, exported.folder, OPTIONS)
    assert report.passed, (report.verdict(), [c for c in report.comparisons if not c.passed][:3])
    assert_compared(report, "onnxruntime", "onnxruntime-portable")


@pytest.mark.parametrize(
    "model_type", sample(("bamba", "jamba", "kimi_linear", "lfm2", "mamba", "qwen3_next", "zamba2"), ("qwen3_next",))
)
def test_the_torch_engine_agrees_too(model_type: str, artifacts: ArtifactCache) -> None:
    exported = artifacts.get(model_type, "float32", layout="paged")
    report = verify(exported.checkpoint, exported.folder, replace(OPTIONS, engine="torch"))
    assert report.passed, (report.verdict(), [c for c in report.comparisons if not c.passed][:3])
    assert_compared(report, "torch")


def assert_compared(report: VerifyReport, *engines: str) -> None:
    """Whether logits and states after draft tokens were among what was compared."""
    for engine in engines:
        own = [c for c in report.comparisons if (c.engine, c.scenario) == (engine, "draft tokens")]
        states = {"conv_state"} if report.model_type == "lfm2" else {"conv_state", "recurrent_state"}
        assert {"logits", *states} <= {c.item for c in own}
        assert sum(c.item == "logits" for c in own) == len(OPTIONS.prompt_lengths) * OPTIONS.decode_steps
