"""The plugins with the classes of full TensorRT 10 and 11, whose Python part is a separate package.

Its native libraries are not in a package registry. The classes work without them: what the bindings take of
a library are nine functions, which give null here. So no builder, parser or registry is made, and everything else is
real: enumerations, descriptors, plugin fields, the base classes that plugins inherit from.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("test_interfaces", "test_stand_in", "test_fields", "test_tensorrt_names")
LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")
FUNCTIONS = (
    "createInferBuilder_INTERNAL",
    "createInferRefitter_INTERNAL",
    "createInferRuntime_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL",
    "createNvOnnxParser_INTERNAL",
    "getBuilderPluginRegistry",
    "getNvOnnxParserVersion",
    "getPluginRegistry",
    "initLibNvInferPlugins",
)
# In a process that does not see TensorRT-RTX.
RUN = "import sys; sys.modules['tensorrt_rtx'] = None; import pytest; sys.exit(pytest.main(sys.argv[1:]))"


@pytest.mark.parametrize("version", [pytest.param("10", marks=pytest.mark.slow), "11"])
def test_the_plugins_fit_its_classes(version: str, tmp_path: Path) -> None:
    bindings, compiler = Path(sys.prefix) / "tensorrt-bindings" / version, shutil.which("cc")
    if not (bindings / "tensorrt_bindings").is_dir():
        pytest.skip(f"needs the bindings of TensorRT {version} in {bindings}: make setup")
    if compiler is None:
        pytest.skip("needs a C compiler, cc")
    libraries = empty_libraries(tmp_path / "lib", version, compiler)
    module = tmp_path / "python" / "tensorrt"
    module.mkdir(parents=True)
    (module / "__init__.py").write_text("from tensorrt_bindings import *\nfrom tensorrt_bindings import __version__\n")
    path = os.pathsep.join(map(str, (module.parent, bindings, ROOT)))
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries), "PYTHONPATH": path}
    files = [f"tests/plugins/{name}.py" for name in TESTS]
    command = [sys.executable, "-c", RUN, "-q", "-p", "no:cacheprovider", *files]
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    assert " passed" in result.stdout and "skipped" not in result.stdout, result.stdout[-2000:]


def empty_libraries(folder: Path, version: str, compiler: str) -> Path:
    """Libraries of that version's names, whose functions give null."""
    folder.mkdir()
    source = folder / "empty.c"
    source.write_text("\n".join(f"void *{name}(void) {{ return 0; }}" for name in FUNCTIONS))
    for name in LIBRARIES:
        file = f"lib{name}.so.{version}"
        command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{file}", "-o", str(folder / file), str(source)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    return folder
