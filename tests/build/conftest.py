"""Engines are built beside their artifacts, which therefore no other worker may share."""

from __future__ import annotations

import pytest

from tests.support.artifacts import ArtifactCache


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> ArtifactCache:
    """The exports of this process."""
    return ArtifactCache(tmp_path_factory.mktemp("artifacts"))
