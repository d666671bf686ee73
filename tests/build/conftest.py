"""Engines are built inside their artifacts, so no other worker may share these."""

from __future__ import annotations

import pytest

from tests.support.artifacts import ArtifactCache


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> ArtifactCache:
    """The exports of this process."""
    return ArtifactCache(tmp_path_factory.mktemp("artifacts"))
