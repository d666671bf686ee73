"""Paged artifacts through the network that TensorRT's parser makes: mixed steps, draft tokens, weights of few bits."""

from __future__ import annotations

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.verification.options import VerifyOptions
from hybridge.verification.verifier import verify
from tests.support.artifacts import ArtifactCache
from tests.support.effort import sample
from tests.support.tiny_models import BASE_CONFIGS, EXPERTS
from tests.support.versions import needs_opset_24

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")

# Head sizes that the plugins' kernels support.
LARGE = {"head_dim": 64, "hybrid_override_pattern": "M-*M", "mamba_head_dim": 32, "ssm_state_size": 64, "n_groups": 2}
NETWORK, NATIVE = "tensorrt-network", "tensorrt-network-native"


@needs_opset_24
@pytest.mark.parametrize("engine", sample((NETWORK, NATIVE), (NETWORK,)))
def test_draft_tokens_agree_with_transformers(engine: str, artifacts: ArtifactCache) -> None:
    """With plugins by a replay of the accepted tokens, without from snapshots."""
    exported = artifacts.get("nemotron_h", "bfloat16", LARGE, layout="paged", dtype=DType.FLOAT16)
    options = VerifyOptions(engine, (1, 9), 4, speculative_tokens=2)
    report = verify(exported.checkpoint, exported.folder, options)
    assert report.passed, (report.verdict(), [c for c in report.comparisons if not c.passed][:3])
    assert not [note for note in report.notes if "only native layers" in note]
    compared = {(c.engine, c.scenario, c.item) for c in report.comparisons}
    for scenario in ("one-shot prefill", "chunked prefill", "prefill beside decode", "decode", "draft tokens"):
        assert (engine, scenario, "logits") in compared and (engine, scenario, "recurrent_state") in compared
    assert (engine, "free blocks and slots", "unchanged") in compared


@needs_opset_24
@pytest.mark.slow
@pytest.mark.parametrize("family", BASE_CONFIGS)
def test_every_family_agrees_with_transformers(family: str, artifacts: ArtifactCache) -> None:
    exported = artifacts.get(family, "float32", EXPERTS.get(family, {}), layout="paged")
    report = verify(exported.checkpoint, exported.folder, VerifyOptions(NATIVE, (1, 7), 3))
    assert report.passed, (report.verdict(), [c for c in report.comparisons if not c.passed][:3])
