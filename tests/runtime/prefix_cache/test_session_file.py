"""A session file is there whole or not at all, and nothing that was changed in it is believed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from hybridge.artifact.child_python import child_command
from hybridge.artifact.errors import OutputError, RequestError
from hybridge.runtime.prefix_cache import session_file
from hybridge.runtime.prefix_cache.session_file import SavedSession, read_session, write_session


def session(tokens: int, fill: float = 1.0) -> SavedSession:
    arrays = {
        "past_key_0": np.full((2, tokens, 1, 3), fill, np.float16),
        "conv_state_0": np.full((5, 4), -fill, ml_dtypes.bfloat16),
        "recurrent_state_0": np.arange(7, dtype=np.float32) * fill,
    }
    return SavedSession("weights", "tenant", tuple(range(tokens)), arrays)


def same(found: SavedSession, expected: SavedSession) -> bool:
    heads = [(each.weights, each.namespace, each.tokens, each.arrays.keys()) for each in (found, expected)]
    return heads[0] == heads[1] and all(
        array.dtype == expected.arrays[name].dtype and np.array_equal(array, expected.arrays[name])
        for name, array in found.arrays.items()
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    for tokens in (0, 1, 33):
        write_session(tmp_path / "a.session", session(tokens))
        assert same(read_session(tmp_path / "a.session"), session(tokens))
    # It holds a conversation.
    assert (tmp_path / "a.session").stat().st_mode & 0o777 == 0o600


def test_every_byte_counts(tmp_path: Path) -> None:
    file = tmp_path / "a.session"
    write_session(file, session(3))
    data = file.read_bytes()
    for place in range(len(data)):
        file.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        with pytest.raises(RequestError, match="save it again"):
            read_session(file)


def test_half_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.session"
    write_session(file, session(3))
    data = file.read_bytes()
    for length in range(len(data)):
        file.write_bytes(data[:length])
        with pytest.raises(RequestError, match="save it again"):
            read_session(file)
    file.write_bytes(data + b"\0")
    with pytest.raises(RequestError, match=r"expected .* bytes, found"):
        read_session(file)
    with pytest.raises(RequestError, match="found none"):
        read_session(tmp_path / "none.session")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 2}, "expected version 1"),
        ({"tokens": ["a"]}, "expected tokens and"),
        ({"arrays": []}, "expected .* bytes, found"),
        ({"arrays": [{"name": "conv_state_0", "dtype": "float33", "shape": [1]}]}, "header is not that of"),
        ({"arrays": [{"name": "conv_state_0", "dtype": "float32", "shape": [1 << 40]}]}, "expected .* bytes, found"),
        ({"arrays": [{}]}, "header is not that of"),
        ({"arrays": [{"name": 5, "dtype": "float32", "shape": [1]}]}, "header is not that of"),
        *(
            (
                {"arrays": [{"name": "conv_state_0", "dtype": "float32", "shape": shape}]},
                "header is not that of|expected .* bytes, found",
            )
            for shape in ([-1], [True], ["a"], [[1]], [1.5], [1e400], [1 << 62, 4], [1 << 64, 0], [10**30], 5)
        ),
        ({"weights": 5}, "weights: expected"),
    ],
    ids=str,
)
def test_a_header_that_was_changed_is_refused(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    """With a checksum that fits."""
    file = tmp_path / "chat.session"
    write_session(file, session(3))
    data = file.read_bytes()
    end = 16 + int.from_bytes(data[8:16], "little")
    header = json.dumps({**json.loads(data[16:end]), **change}).encode()
    changed = data[:8] + len(header).to_bytes(8, "little") + header + data[end:-32]
    file.write_bytes(changed + hashlib.sha256(changed).digest())
    with pytest.raises(RequestError, match=reason):
        read_session(file)


@pytest.mark.parametrize(
    "text", [b"", b"null", b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b"{}"], ids=lambda t: t[:5]
)
def test_an_invalid_header_is_refused(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "chat.session"
    data = session_file.MAGIC + len(text).to_bytes(8, "little") + text
    file.write_bytes(data + hashlib.sha256(data).digest())
    with pytest.raises(RequestError, match=r"chat\.session: .*(save it again|version: expected)"):
        read_session(file)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_a_save_that_breaks_off_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    file = tmp_path / "a.session"
    write_session(file, session(3))

    def broken(_: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OutputError if isinstance(error, OSError) else KeyboardInterrupt):
        write_session(file, session(9))
    assert same(read_session(file), session(3))
    assert os.listdir(tmp_path) == ["a.session"]


@pytest.mark.parametrize("path", ["missing/a.session", "folder"])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, path: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match=f"{path}: cannot be written"):
        write_session(tmp_path / path, session(1))
    assert os.listdir(tmp_path) == ["folder"]


def test_concurrent_saves_leave_one_complete_file(tmp_path: Path) -> None:
    file, turns, wholes = tmp_path / "a.session", 30, [session(2000, 1.0), session(1500, 2.0)]
    write_session(file, wholes[0])
    threads = [threading.Thread(target=lambda s=s: [write_session(file, s) for _ in range(turns)]) for s in wholes]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        found = read_session(file)
        assert any(same(found, whole) for whole in wholes)
    for thread in threads:
        thread.join()
    assert os.listdir(tmp_path) == ["a.session"]


def test_what_a_killed_save_left_goes_with_the_next(tmp_path: Path) -> None:
    file = tmp_path / "a.session"
    code = (
        "import os, sys; from pathlib import Path; from hybridge.artifact.written_file import written_file\n"
        "with written_file(Path(sys.argv[1])) as file:\n    file.write(b'half'); file.flush(); os.kill(os.getpid(), 9)"
    )
    subprocess.run(child_command(code, str(file)))
    assert not file.exists() and len(os.listdir(tmp_path)) == 1
    write_session(file, session(3))
    assert os.listdir(tmp_path) == ["a.session"]


def test_a_file_of_more_than_the_pools_hold_is_not_read(tmp_path: Path) -> None:
    """A sparse file of any size costs an attacker nothing."""
    file = tmp_path / "a.session"
    write_session(file, session(3))
    size = file.stat().st_size
    assert same(read_session(file, size), session(3))
    with pytest.raises(RequestError, match=f"expected at most {size - 1} bytes"):
        read_session(file, size - 1)
    os.truncate(file, 1 << 42)
    with pytest.raises(RequestError, match="expected at most"):
        read_session(file)
    file.write_bytes(session_file.MAGIC + (1 << 62).to_bytes(8, "little") + bytes(100))
    with pytest.raises(RequestError, match="expected a header of at most"):
        read_session(file)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(RequestError, match="found a pipe"):
        read_session(file)
