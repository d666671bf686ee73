"""A run that was killed is continued, and its output is that of one that was not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hybridge
from hybridge.artifact.errors import OutputError, SettingError
from hybridge.artifact.temporary_folder import lock_folder
from hybridge.quantization import run_digest
from tests.project.test_imports import ROOT, imported_modules
from tests.runtime.text.tokenizer_files import byte_level_tokenizer
from tests.support.effort import sample
from tests.support.tiny_models import save_tiny_model

# Runs hybridge.quantize; the process is killed in the middle of the given call of a function.
SCRIPT = """
import json, os, signal, sys
import hybridge
from hybridge.quantization import layer_quantizer, mix, quantizer

checkpoint, out, options, place, count = json.loads(sys.argv[1])

def killed(function):
    def call(*arguments, **named):
        global count
        count -= 1
        result = function(*arguments, **named)
        if count == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call

if place == "matrix":
    layer_quantizer.fill_matrix = killed(layer_quantizer.fill_matrix)
elif place == "sensitivity":
    mix._Measurement.divergence = killed(mix._Measurement.divergence)
elif place == "move":
    quantizer.os.rename = killed(quantizer.os.rename)

class Stages:
    def start(self, stage, total=None, unit=""):
        print(stage, flush=True)
    def advance(self, amount=1): pass
    def finish(self): pass

hybridge.quantize(checkpoint, out, progress=Stages(), **options)
"""


def quantize(checkpoint: Path, out: Path, options: dict[str, Any], place: str = "", count: int = 0) -> tuple[int, str]:
    """The return code of a process that quantises, and the stages that it went through."""
    arguments = json.dumps([str(checkpoint), str(out), options, place, count])
    outcome = subprocess.run([sys.executable, "-c", SCRIPT, arguments], stdout=subprocess.PIPE, text=True, check=False)
    return outcome.returncode, outcome.stdout


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


CASES = [
    ({"method": "rtn"}, [("matrix", 10)], "1 of 4 layers are reused"),
    ({"method": "rtn"}, [("matrix", 17), ("matrix", 3), ("move", 1)], "quantise"),
    ({"method": "awq"}, [("matrix", 17)], "2 of 4 layers are reused"),
    ({"method": "gptq", "bits": 6.5}, [("sensitivity", 4), ("matrix", 10)], "(13 are reused)"),
]


@pytest.mark.parametrize(("options", "kills", "stage"), sample(CASES, on_push=CASES[:1]))
def test_a_killed_run_is_continued(
    tmp_path: Path, options: dict[str, Any], kills: list[tuple[str, int]], stage: str
) -> None:
    sizes = {"vocab_size": 410, "tie_word_embeddings": False}
    checkpoint = byte_level_tokenizer(save_tiny_model(tmp_path / "checkpoint", "qwen3", dtype="bfloat16", **sizes))
    out = tmp_path / "out"
    assert quantize(checkpoint, out, options)[0] == 0
    expected = content(out)
    shutil.rmtree(out)
    for place, count in kills:
        assert quantize(checkpoint, out, {**options, "resume": True}, place, count)[0] == -signal.SIGKILL
        assert not out.exists() and (tmp_path / ".out.hybridge-quantize").is_dir()
    code, stages = quantize(checkpoint, out, {**options, "resume": True})
    assert code == 0 and stage in stages
    assert content(out) == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "out"]


def test_other_settings_and_other_runs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, out = save_tiny_model(tmp_path / "checkpoint", "llama"), tmp_path / "out"
    work = tmp_path / ".out.hybridge-quantize"
    assert quantize(checkpoint, out, {"method": "rtn"}, "matrix", 9)[0] == -signal.SIGKILL
    with pytest.raises(
        SettingError, match="resume: expected the checkpoint, settings, text and versions of the run that"
    ):
        hybridge.quantize(checkpoint, out, method="mse", resume=True)
    with monkeypatch.context() as patch, pytest.raises(SettingError, match="found others: leave `resume` out"):
        patch.setattr(run_digest, "source_digest", lambda *_: "another")
        hybridge.quantize(checkpoint, out, method="rtn", resume=True)
    os.utime(checkpoint / "model.safetensors")
    with pytest.raises(SettingError, match=r"found others: leave `resume` out to begin anew"):
        hybridge.quantize(checkpoint, out, method="rtn", resume=True)
    lock = lock_folder(work, wait=False)
    assert lock is not None
    with pytest.raises(OutputError, match="another run writes it"):
        hybridge.quantize(checkpoint, out, method="rtn")
    os.close(lock)
    (work / "journal.jsonl").write_text("{}\n")
    with pytest.raises(SettingError, match="expected the journal of a run, found damage in"):
        hybridge.quantize(checkpoint, out, method="rtn", resume=True)
    hybridge.quantize(checkpoint, out, method="rtn")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "out"]


def test_the_digest_holds_all_code_that_a_quantisation_imports() -> None:
    paths, found = [*(ROOT / "hybridge" / "quantization").glob("*.py")], set[Path]()
    while paths:
        path = paths.pop()
        if path.is_file() and path not in found:
            found.add(path)
            names = [name for _, name in imported_modules(path) if name.startswith("hybridge.")]
            stems = [ROOT / name.replace(".", "/") for name in names]
            paths += [file for stem in stems for file in (stem.with_suffix(".py"), stem / "__init__.py")]
    folders = {f"{path.relative_to(ROOT / 'hybridge').parent.as_posix()}/" for path in found} - {"./"}
    named = tuple(f"{name}/" for name in run_digest.SOURCES)
    assert [folder for folder in folders if not folder.startswith(named)] == []
    assert all(any(folder.startswith(name) for folder in folders) for name in named)
