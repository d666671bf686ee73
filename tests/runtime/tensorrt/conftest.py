"""Artifacts made once for all tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.runtime.tensorrt.built import BuiltArtifacts


@pytest.fixture(scope="session")
def built_artifacts(tmp_path_factory: pytest.TempPathFactory) -> BuiltArtifacts:
    """The session's artifacts, parsed by TensorRT-RTX."""
    pytest.importorskip("tensorrt_rtx", reason="needs the tensorrt-rtx package")
    from tests.runtime.tensorrt.built import BuiltArtifacts

    return BuiltArtifacts(tmp_path_factory.mktemp("tensorrt"))
