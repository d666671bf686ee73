"""Any content of a session file, with a valid checksum, gives a session or a RequestError."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

import pytest

from hybridge.artifact.errors import RequestError
from hybridge.runtime.prefix_cache.session_file import MAGIC, VERSION, read_session
from tests.support.fuzzing import RandomInput, fuzzed

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
    save(file, json.dumps(HEADER).encode())
    assert read_session(file).tokens == (1, 2, 3)


@fuzzed(1500)
def test_session(file: Path, random: RandomInput) -> None:
    length = random.choice([None, None, random.randint(0, 300), 2**27, 2**63, 2**64 - 1])
    arrays = ARRAYS if random.chance(0.7) else random.randbytes(random.randrange(90))
    save(file, random.damaged_json(HEADER), length, arrays)
    with contextlib.suppress(RequestError):
        found = read_session(file)
        assert sum(array.nbytes for array in found.arrays.values()) == found.nbytes == len(arrays)
