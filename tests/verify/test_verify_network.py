"""Verification through the network that TensorRT's parser makes of an artifact, with plugins and without."""

from __future__ import annotations

import itertools

import pytest

from hybridge.verification.options import VerifyOptions, default_tolerance
from hybridge.verification.verifier import verify
from tests.support.artifacts import ArtifactCache
from tests.support.effort import sample
from tests.support.export_cases import CASES
from tests.support.versions import needs_opset_24

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")

ENGINES = ("tensorrt-network", "tensorrt-network-native")
ON_PUSH = (("nemotron_h copied", ENGINES[0]),)


@needs_opset_24
@pytest.mark.parametrize(("name", "engine"), sample(itertools.product(CASES, ENGINES), ON_PUSH))
def test_network_agrees_with_transformers(name: str, engine: str, artifacts: ArtifactCache) -> None:
    exported = CASES[name].get(artifacts)
    report = verify(exported.checkpoint, exported.folder, VerifyOptions(engine, (1, 7), 3))
    failed = [c for c in report.comparisons if not c.passed]
    assert report.passed, (report.verdict(), failed[:3])
    assert report.tolerance == default_tolerance(engine, exported.config.dtype)
    compared = {(c.engine, c.scenario, c.item) for c in report.comparisons}
    for scenario in ("one-shot prefill", "chunked prefill", "end beside prompt", "ragged batch", "decode"):
        assert (engine, scenario, "logits") in compared
    assert (engine, "one-shot prefill", "hidden") in compared
