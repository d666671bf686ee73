"""A built wheel works in an empty environment outside the checkout, and brings its data along."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Packages that only an extra brings: the wheel's own commands must start without them.
EXTRAS_ONLY = ("torch", "transformers", "onnxscript", "onnxruntime", "tensorrt_rtx", "tensorrt", "matplotlib", "pytest")

BLOCKER = f"""
import sys


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {EXTRAS_ONLY!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Absent())
"""


def run(*command: str | Path, cwd: Path) -> str:
    result = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return next(folder.glob("hybridge-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that holds the wheel; dependencies are borrowed from here, no network."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    arguments = ("--python", python, "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", *arguments, wheel, cwd=folder)
    site = next(folder.glob("lib/python*/site-packages"))
    # Lines of a .pth only extend sys.path: an editable install of the checkout over there stays unseen.
    borrowed = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
    (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n", encoding="utf-8")
    (site / "sitecustomize.py").write_text(BLOCKER, encoding="utf-8")
    return folder / "bin"


def test_wheel_holds_every_package_and_the_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tracked = run("git", "ls-files", "hybridge", "exporter", "runtime", "trt_plugins", "artifact", cwd=ROOT).split()
    missing = {name for name in tracked if (ROOT / name).exists()} - names
    assert not missing
    for folder in ("configs", "plugin_src"):
        data = run("git", "ls-files", folder, cwd=ROOT).split()
        assert data and {f"artifact/_data/{name}" for name in data if (ROOT / name).exists()} <= names
    assert not [name for name in names if name.startswith(("tests/", "tools/", "benchmarks/"))]


def test_command_runs_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    assert "build-engine" in run(installed / "hybridge", "--help", cwd=tmp_path)
    assert run(installed / "hybridge", "--version", cwd=tmp_path).startswith("hybridge ")


def test_data_folders_are_found_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    code = (
        "import hybridge.artifact.resources as r\n"
        "for name in ('configs', 'plugin_src'): print(r.data_folder(name))\n"
        "print(len(list(r.data_folder('configs').glob('*.toml'))))"
    )
    *folders, presets = run(installed / "python", "-c", code, cwd=tmp_path).splitlines()
    assert all(str(ROOT) not in folder and "_data" in folder for folder in folders)
    assert int(presets) == len(list((ROOT / "configs").glob("*.toml"))) > 0


def test_modules_come_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    code = "import hybridge, exporter, runtime, trt_plugins, artifact as a; print(hybridge.__file__, a.__file__)"
    assert str(ROOT) not in run(installed / "python", "-c", code, cwd=tmp_path)
