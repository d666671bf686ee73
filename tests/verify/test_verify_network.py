"""Verification through the network that TensorRT's parser makes of an artifact, with plugins and without."""

from __future__ import annotations

import itertools

import pytest

from hybridge.artifact.errors import SettingError
from hybridge.exporter.families.registry import FAMILIES
from hybridge.verification.options import VerifyOptions, default_tolerance
from hybridge.verification.verifier import verify
from tests.support.artifacts import ArtifactCache
from tests.support.effort import sample
from tests.support.export_cases import CASES
from tests.support.tiny_models import BASE_CONFIGS
from tests.verify.network_cases import ATTENTION_ALONE, SIZES, exported

pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")

ENGINES = ("tensorrt-network", "tensorrt-network-native")
ON_PUSH = (("nemotron_h copied", ENGINES[0]),)


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


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("family", BASE_CONFIGS)
def test_every_family_with_sizes_of_the_kernels(family: str, engine: str, artifacts: ArtifactCache) -> None:
    made = exported(artifacts, family)
    report = verify(made.checkpoint, made.folder, VerifyOptions(engine, (1, 70), 3))
    assert report.passed, (report.verdict(), [c for c in report.comparisons if not c.passed][:3])
    native = [note for note in report.notes if "only native layers" in note]
    # Attention of the dense layout is TensorRT's own.
    assert bool(native) == (engine == ENGINES[0] and family in ATTENTION_ALONE)


def test_the_matrix_has_every_registered_family() -> None:
    assert set(BASE_CONFIGS) == set(FAMILIES)
    assert set(SIZES) <= set(FAMILIES)


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_other_engines_compute_in_one_type(engine: str) -> None:
    with pytest.raises(SettingError, match=f"float32: expected the engine tensorrt-network .* found {engine}"):
        VerifyOptions(engine, float32=True)
