"""Writers of checkpoints and artifacts on a full disk, and killed ones: no half-written output stays or is used."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hybridge
from tests.support.tiny_models import save_tiny_model

pytestmark = pytest.mark.slow
CALLS: dict[str, dict[str, Any]] = {
    "quantize": {"method": "rtn"},
    "quantize again": {"method": "rtn", "resume": True},
    "export": {"weights": "copy", "max_seq_len": 16},
    "export quantised": {"weights": "copy", "max_seq_len": 16, "quantize": "int4"},
}
# KiB by which a disk that was too small grows.
STEPS = {"quantize": 8, "quantize again": 8, "export": 48, "export quantised": 24}
# What a full disk leaves beside nothing, and the remedies by what is left.
_FOLDER = ".out.hybridge-quantize"
WORK = {call: [(_FOLDER,)] if call.startswith("quantize") else [] for call in CALLS}
REMEDIES = {
    (): "free space or give another path; nothing was left behind",
    (_FOLDER,): f"free space; /mnt/{_FOLDER} keeps the finished layers: pass `resume=True` to continue",
}
TINY_DISK = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
MOUNT = "mount -t tmpfs -o size=4k none /mnt"
# Grows the disk until the call succeeds: prints what it raised, and left, on each smaller one.
GROWING_DISK = """
import hashlib, json, subprocess, sys
from pathlib import Path
import hybridge
from hybridge.artifact.errors import OutputError
checkpoint, function, options, step = json.loads(sys.argv[1])
raised, size = [], 4
while size < 4096:
    try:
        getattr(hybridge, function)(checkpoint, "/mnt/out", **options)
        break
    except OutputError as error:
        raised.append([str(error), [path.name for path in Path("/mnt").iterdir()]])
    size += step
    subprocess.run(["mount", "-o", f"remount,size={size}k", "/mnt"], check=True)
files = [path for path in Path("/mnt/out").rglob("*") if path.is_file()]
used = sum(path.stat().st_size for path in files) / 1024 / size
digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
print(json.dumps([raised, used, digests, [path.name for path in Path("/mnt").iterdir()]]))
"""
# Calls a function in a process that is killed in the middle of the given call of a function.
KILLED = """
import importlib, json, os, signal, sys
import hybridge
checkpoint, out, function, options, module, name, count = json.loads(sys.argv[1])
place = importlib.import_module(module)
called = getattr(place, name)
def killed(*arguments, **named):
    global count
    count -= 1
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return called(*arguments, **named)
setattr(place, name, killed)
getattr(hybridge, function)(checkpoint, out, **options)
"""
EXPORT = "hybridge.exporter.export"
KILLS = [(EXPORT, "_graph"), (EXPORT, "_manifest"), ("hybridge.artifact.folder", "_replace")]


def run(script: str, *arguments: Any, before: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, json.dumps(arguments)]
    if before:
        command = [*TINY_DISK, f'{before} && exec "$0" "$@"', *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.parametrize("call", CALLS)
def test_a_disk_that_is_full_at_any_place(call: str, tmp_path: Path) -> None:
    if subprocess.run([*TINY_DISK, MOUNT], capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("this system lets no user mount a small file system")
    checkpoint = save_tiny_model(tmp_path / "checkpoint", "llama", dtype="bfloat16")
    ended = run(GROWING_DISK, str(checkpoint), call.split()[0], CALLS[call], STEPS[call], before=MOUNT)
    assert ended.returncode == 0, ended.stderr
    raised, used, digests, names = json.loads(ended.stdout.splitlines()[-1])
    assert len(raised) >= 4 and used > 0.5 and names == ["out"]
    assert {tuple(left) for _, left in raised} == {(), *WORK[call]}
    for message, left in raised:
        assert message == f"/mnt/out: the disk is full: {REMEDIES[tuple(left)]}"
    if WORK[call]:
        hybridge.quantize(checkpoint, tmp_path / "out", **{**CALLS[call], "resume": False})
        whole = {name: hashlib.sha256(each).hexdigest() for name, each in contents(tmp_path / "out").items()}
        report = "hybridge_quantization.json"
        assert digests.keys() == whole.keys() and {**digests, report: ""} == {**whole, report: ""}


@pytest.mark.parametrize("call", ["export", "export quantised"])
def test_killed_exports(call: str, tmp_path: Path) -> None:
    """What they left is no artifact, and the next export removes it."""
    checkpoint, options = save_tiny_model(tmp_path / "checkpoint", "llama"), CALLS[call]
    whole, out = tmp_path / "whole" / "out", tmp_path / "own" / "out"
    never = ("hybridge.artifact.folder", "_replace", 0)
    assert run(KILLED, str(checkpoint), str(whole), "export", options, *never).returncode == 0
    for place in KILLS:
        ended = run(KILLED, str(checkpoint), str(out), "export", options, *place, 1)
        assert ended.returncode == -signal.SIGKILL and not out.exists() and any(out.parent.iterdir())
    assert run(KILLED, str(checkpoint), str(out), "export", options, *never).returncode == 0
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert contents(out) == contents(whole)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
