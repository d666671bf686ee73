"""Mutation test: verify with its defaults finds every fault of an artifact, and names the place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hybridge.artifact.config import read_config
from hybridge.verification import verifier
from hybridge.verification.verifier import verify
from tests.support.artifacts import ArtifactCache
from tests.verify.damaged_artifact import DamagedArtifact
from tests.verify.faults import FAULTS, ON_PUSH, SOURCES


@pytest.fixture(scope="module", autouse=True)
def one_reference() -> Iterator[None]:
    """The reference runs once for all faults of an artifact: none of them changes the checkpoint."""
    known: dict[Any, Any] = {}
    real = verifier._cases

    def remembered(
        source: Path, folder: Path, artifact: Path, config: Any, options: Any, plan: Any, progress: Any
    ) -> Any:
        key = (folder, config.layout, options, plan.lengths)
        if key not in known:
            known[key] = real(source, folder, artifact, config, options, plan, progress)
        return replace(known[key], config=config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verifier, "_cases", remembered)
        yield


@pytest.mark.parametrize(
    "name", [name if name in ON_PUSH else pytest.param(name, marks=pytest.mark.slow) for name in FAULTS]
)
def test_a_fault_is_found_and_its_place_named(name: str, artifacts: ArtifactCache, tmp_path: Path) -> None:
    fault = FAULTS[name]
    exported = SOURCES[fault.source].get(artifacts)
    damaged = DamagedArtifact(exported.folder, tmp_path / "damaged")
    fault.edit(damaged)
    report = verify(exported.checkpoint, damaged.write())
    assert not report.passed, report.verdict()
    assert report.failing_place == fault.place, report.verdict()
    assert fault.place in report.verdict()


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_without_a_fault_all_agrees(source: str, artifacts: ArtifactCache, tmp_path: Path) -> None:
    exported = SOURCES[source].get(artifacts)
    copy = DamagedArtifact(exported.folder, tmp_path / "copy").write()
    report = verify(exported.checkpoint, copy)
    assert report.passed and not report.not_crossed, report.verdict()
    assert read_config(copy) == exported.config


def test_enough_faults_are_known() -> None:
    assert len(FAULTS) >= 40 and set(ON_PUSH) <= set(FAULTS) and len(ON_PUSH) == 6
