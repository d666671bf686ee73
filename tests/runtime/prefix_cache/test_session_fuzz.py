"""Whatever stands in a session file, with a checksum that fits: a session, or a RequestError."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridge.artifact.errors import RequestError
from hybridge.runtime.prefix_cache.session_file import MAGIC, VERSION, read_session
from tests.support.effort import examples
from tests.support.mutations import CHANGES, SPLICES, changed_json, spliced

HEADER = {
    "version": VERSION,
    "weights": "0123",
    "namespace": "",
    "tokens": [1, 2, 3],
    "arrays": [
        {"name": "past_key_0", "dtype": "float16", "shape": [2, 3, 1, 4]},
        {"name": "conv_state_0", "dtype": "float32", "shape": [5]},
    ],
}
ARRAYS = bytes(2 * 3 * 4 * 2 + 5 * 4)


def save(file: Path, header: bytes, length: int | None = None, arrays: bytes = ARRAYS) -> None:
    data = MAGIC + (len(header) if length is None else length).to_bytes(8, "little") + header + arrays
    file.write_bytes(data + hashlib.sha256(data).digest())


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzzed") / "a.session"


def test_the_sample_is_valid(file: Path) -> None:
    save(file, changed_json(HEADER, []))
    assert read_session(file).tokens == (1, 2, 3)


@pytest.mark.fuzz
@settings(max_examples=examples(200), deadline=None)
@given(
    changes=CHANGES,
    splices=SPLICES,
    length=st.none() | st.integers(0, 300) | st.sampled_from([2**27, 2**63, 2**64 - 1]),
    arrays=st.just(ARRAYS) | st.binary(max_size=90),
)
def test_session(
    file: Path, changes: list[Any], splices: list[tuple[int, int, bytes]], length: int | None, arrays: bytes
) -> None:
    save(file, spliced(changed_json(HEADER, changes), splices), length, arrays)
    with contextlib.suppress(RequestError):
        found = read_session(file)
        assert sum(array.nbytes for array in found.arrays.values()) == found.nbytes == len(arrays)
