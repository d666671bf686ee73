"""Steps of draft tokens against transformers, for each kind of recurrent layer."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from hybridge.artifact.config import RuntimeConfig
from hybridge.runtime.engines.rollback.modes import REPLAY, SNAPSHOT
from hybridge.verification.options import VerifyOptions
from hybridge.verification.report import VerifyReport
from hybridge.verification.scenarios import state_items
from hybridge.verification.verifier import verify
from tests.support.artifacts import ArtifactCache
from tests.support.effort import sample
from tests.support.family_layers import RECURRENT

OPTIONS = VerifyOptions(prompt_lengths=(1, 7), decode_steps=7, tolerance=2e-5, speculative_tokens=3)

# The portable engine replays none.
WAYS = (
    *(("onnxruntime", SNAPSHOT), ("onnxruntime", REPLAY), ("onnxruntime-portable", SNAPSHOT)),
    *(("torch", SNAPSHOT), ("torch", REPLAY)),
)
ON_PUSH = (
    ("nemotron_h", "onnxruntime", SNAPSHOT),
    ("nemotron_h", "onnxruntime", REPLAY),
    ("qwen3_next", "torch", REPLAY),
)
CASES = [(family, *way) for family, way in product(RECURRENT, WAYS)]


# On push each recurrent operator with one engine; runtime/engines/test_rollback.py has both operators with both.
@pytest.mark.parametrize(("family", "engine", "mode"), sample(CASES, ON_PUSH))
def test_accepted_draft_tokens_agree_with_transformers(
    family: str, engine: str, mode: str, artifacts: ArtifactCache
) -> None:
    exported = artifacts.get(family, "float32", layout="paged")
    options = replace(OPTIONS, engine=engine, draft_states=mode)
    report = verify(exported.checkpoint, exported.folder, options)
    assert report.passed, (report.verdict(), [c for c in report.comparisons if not c.passed][:3])
    assert_compared(report, engine, exported.config)


def assert_compared(report: VerifyReport, engine: str, config: RuntimeConfig) -> None:
    """Whether logits and states after draft tokens were among what was compared."""
    own = [c for c in report.comparisons if (c.engine, c.scenario) == (engine, "draft tokens")]
    assert {"logits", *(item for _, _, item in state_items(config))} <= {c.item for c in own}
    assert sum(c.item == "logits" for c in own) == len(OPTIONS.prompt_lengths) * OPTIONS.decode_steps
