"""The engine file: hashed while it is written, errors kept until TensorRT has returned."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hybridge.trt_plugins.build.plan_file import PlanFile, build_plan

FULL = Path("/dev/full")
PLAN = bytes(range(256)) * 150_000


class Writer:
    """A stand-in for trt.IStreamWriter."""


def streaming(chunks: list[bytes]) -> Any:
    """A builder that writes ``chunks`` until one is refused."""
    return SimpleNamespace(
        build_serialized_network_to_stream=lambda network, config, writer: all(
            writer.write(chunk) == len(chunk) for chunk in chunks
        )
    )


BUILDERS = {
    "stream": streaming([PLAN[:1000], PLAN[1000:]]),
    "whole": SimpleNamespace(build_serialized_network=lambda network, config: PLAN),
}


@pytest.mark.parametrize("kind", BUILDERS)
def test_content_size_and_hash(tmp_path: Path, kind: str) -> None:
    file = PlanFile(tmp_path / "engine")
    assert build_plan(SimpleNamespace(IStreamWriter=Writer), BUILDERS[kind], None, None, file)
    file.close()
    assert (tmp_path / "engine").read_bytes() == PLAN
    assert (file.nbytes, file.sha256) == (len(PLAN), hashlib.sha256(PLAN).hexdigest())


def test_a_failed_build_writes_nothing(tmp_path: Path) -> None:
    file = PlanFile(tmp_path / "engine")
    builder = SimpleNamespace(build_serialized_network=lambda network, config: None)
    assert not build_plan(None, builder, None, None, file)
    file.close()
    assert file.nbytes == 0


@pytest.mark.skipif(not FULL.exists(), reason="needs the device /dev/full")
@pytest.mark.parametrize("kind", BUILDERS)
def test_a_full_disk_is_raised_at_the_end(kind: str) -> None:
    file = PlanFile(FULL)
    assert not build_plan(SimpleNamespace(IStreamWriter=Writer), BUILDERS[kind], None, None, file)
    with pytest.raises(OSError) as caught:
        file.close()
    assert caught.value.errno == errno.ENOSPC
