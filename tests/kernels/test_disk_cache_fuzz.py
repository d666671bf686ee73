"""Whatever stands in an entry of the kernel cache: code with its own checksum, or the kernel is compiled again."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridge.trt_plugins.kernels.compiler import CompiledKernel
from hybridge.trt_plugins.kernels.disk_cache import FORMAT, KernelCache
from hybridge.trt_plugins.kernels.resource_report import ResourceReport
from hybridge.trt_plugins.kernels.source import KernelSource
from tests.support.effort import examples
from tests.support.mutations import CHANGES, SPLICES, changed_json, spliced

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
    save(cache.path(SOURCE, "sm_87"), changed_json(head_of(b"old"), []), b"old")
    assert cache.get(SOURCE, "sm_87") == CompiledKernel(b"old", ResourceReport(**REPORT))


@pytest.mark.fuzz
@settings(max_examples=examples(200), deadline=None)
@given(changes=CHANGES, splices=SPLICES, code=st.binary(max_size=20), deep=st.booleans())
def test_entry(
    cache: KernelCache, changes: list[Any], splices: list[tuple[int, int, bytes]], code: bytes, deep: bool
) -> None:
    head = b"[" * 20_000 if deep and not changes else changed_json(head_of(code), changes)
    save(cache.path(SOURCE, "sm_87"), spliced(head, splices), code)
    assert cache.get(SOURCE, "sm_87").cubin in (code, NEW.cubin)
