"""Whatever stands in an entry of the kernel cache: code with its own checksum, or the kernel is compiled again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from hybridge.trt_plugins.kernels.compiler import CompiledKernel
from hybridge.trt_plugins.kernels.disk_cache import FORMAT, KernelCache
from hybridge.trt_plugins.kernels.resource_report import ResourceReport
from hybridge.trt_plugins.kernels.source import KernelSource
from tests.support.fuzzing import RandomInput, fuzzed

SOURCE = KernelSource("common/integers.cuh", "entry")
NEW = CompiledKernel(b"new", None)
REPORT = {"registers": 1, "shared_bytes": 2, "stack_bytes": 3, "spill_bytes": 4}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> KernelCache:
    return KernelCache(tmp_path_factory.mktemp("fuzzed"), lambda source, architecture: NEW, lambda: "13")


def save(path: Path, head: bytes, code: bytes) -> None:
    path.write_bytes(head + b"\n" + code)


def head_of(code: bytes) -> dict[str, Any]:
    return {"format": FORMAT, "sha256": hashlib.sha256(code).hexdigest(), "report": REPORT}


def test_the_sample_is_valid(cache: KernelCache) -> None:
    save(cache.path(SOURCE, "sm_87"), json.dumps(head_of(b"old")).encode(), b"old")
    assert cache.get(SOURCE, "sm_87") == CompiledKernel(b"old", ResourceReport(**REPORT))


@fuzzed(1500)
def test_entry(cache: KernelCache, random: RandomInput) -> None:
    code = random.randbytes(random.randrange(20))
    head = b"[" * 20_000 if random.chance(0.05) else random.damaged_json(head_of(code))
    save(cache.path(SOURCE, "sm_87"), head, code)
    assert cache.get(SOURCE, "sm_87").cubin in (code, NEW.cubin)
