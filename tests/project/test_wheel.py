"""A built wheel works in an empty environment outside the checkout, and brings its data along."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from hybridge.artifact.version import __version__

ROOT = Path(__file__).resolve().parents[2]
# Folders of the repository that are reached through links in hybridge/.
LINKED = ("artifact", "configs", "exporter", "plugin_src", "runtime", "trt_plugins")
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


def run(*command: str | Path, cwd: Path, python_path: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if python_path is not None:
        environment["PYTHONPATH"] = str(python_path)
    words = [str(word) for word in command]
    result = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=300, env=environment)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that pip would build from the source distribution, which is built from the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    # Without --wheel or --sdist, build makes the sdist and then the wheel from its unpacked files.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
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


def test_wheel_holds_hybridge_alone_with_every_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    tracked = run("git", "ls-files", "hybridge", *LINKED, cwd=ROOT).split()
    expected = {name if name.startswith("hybridge/") else f"hybridge/{name}" for name in tracked}
    assert names == {name for name in expected if (ROOT / name).is_file()}


def test_wheels_from_the_checkout_and_from_the_sdist_are_alike(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as second:
        assert {i.filename: i.CRC for i in first.infolist()} == {i.filename: i.CRC for i in second.infolist()}


def test_command_runs_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    assert "build-engine" in run(installed / "hybridge", "--help", cwd=tmp_path)
    assert run(installed / "hybridge", "--version", cwd=tmp_path).startswith(f"hybridge {__version__}")


def test_data_folders_are_found_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    code = (
        "import hybridge.artifact.resources as r\n"
        "for name in ('configs', 'plugin_src'): print(r.data_folder(name))\n"
        "print(len(list(r.data_folder('configs').glob('*.toml'))))"
    )
    *folders, presets = run(installed / "python", "-c", code, cwd=tmp_path).splitlines()
    assert all(str(ROOT) not in folder and "site-packages" in folder for folder in folders)
    assert int(presets) == len(list((ROOT / "configs").glob("*.toml"))) > 0


def users_files(folder: Path) -> None:
    """What a user may have next to a script: packages and modules with the names of the top folders."""
    for name in LINKED:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise RuntimeError('a file of the user was imported')\n")
    (folder / "exporter.py").write_text("raise RuntimeError('a file of the user was imported')\n")
    shutil.rmtree(folder / "exporter")


@pytest.mark.parametrize("where", ["wheel", "checkout"])
def test_files_of_the_user_do_not_hide_modules(installed: Path, tmp_path: Path, where: str) -> None:
    users_files(tmp_path)
    code = "import hybridge, hybridge.cli.main, hybridge.trt_plugins.build; hybridge.LLM, hybridge.SamplingParams"
    if where == "wheel":
        run(installed / "python", "-c", code, cwd=tmp_path)
    else:
        # The folder of the user, which -c puts first, comes before the checkout.
        run(sys.executable, "-c", code, cwd=tmp_path, python_path=ROOT)
