"""Every family against transformers through the torch engine, in every way it can be driven, layer by layer."""

from __future__ import annotations

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.verification.options import VerifyOptions
from hybridge.verification.verifier import verify
from tests.support.artifacts import ArtifactCache
from tests.support.export_cases import ON_PUSH, ExportCase, case_params

pytest.importorskip("transformers", reason="needs the export extra (torch, transformers)")

# Float32 against float32, relative L2 norm; in 16 bits the tolerance of verify for such engines counts.
TOLERANCE = 2e-5


# Of these, as far as this engine goes, other cases have the same layers and types.
TWICE = {"nemotron_h copied", "granitemoehybrid bf16"}


@pytest.mark.parametrize("case", case_params(set(ON_PUSH) - TWICE))
def test_a_family_agrees_with_transformers(case: ExportCase, artifacts: ArtifactCache) -> None:
    exported = case.get(artifacts)
    tolerance = TOLERANCE if case.compute is DType.FLOAT32 else None
    options = VerifyOptions(engine="torch", prompt_lengths=(1, 7, 33), decode_steps=4, tolerance=tolerance)
    report = verify(exported.checkpoint, exported.folder, options)
    failed = [c for c in report.comparisons if not c.passed]
    assert report.passed, (report.verdict(), failed[:3], max(c.error for c in failed))
    assert {c.engine for c in report.comparisons} == {"torch"}
    compared = {(c.scenario, c.item) for c in report.comparisons}
    assert ("one-shot prefill", "hidden") in compared and ("row without tokens", "unchanged") in compared
