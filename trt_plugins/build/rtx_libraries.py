"""Names under which TensorRT-RTX's parser looks for its own library.

The parser opens ``libtensorrt_rtx.so`` when it adds a plugin, and aborts the process when there is no such file; the
wheel ships ``libtensorrt_rtx.so.1`` alone. A folder of links on LD_LIBRARY_PATH gives it the name without touching
the installation, which may be read-only. It must be there when the process starts.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from hybridge.artifact.errors import EngineError

LIBRARIES_MODULE = "tensorrt_rtx_libs"


def unversioned_links(folder: Path, libraries: Path | None = None) -> list[Path]:
    """Link every ``lib*.so.N`` of ``libraries`` (default: the wheel's) into ``folder`` as ``lib*.so``.

    Libraries that already have that name are left out. Returns the links. EngineError when no link can be made.
    """
    libraries = libraries or wheel_libraries()
    if libraries is None or not sys.platform.startswith("linux"):
        return []
    links = []
    for library in sorted(libraries.glob("lib*.so.*")):
        name = library.name[: library.name.index(".so") + len(".so")]
        link = folder / name
        if (libraries / name).exists() or link.is_symlink():
            continue
        try:
            link.symlink_to(library.resolve())
        except OSError as error:
            raise EngineError(
                f"{folder}: expected a folder that can hold links, found {error.strerror or error}: "
                "set TMPDIR to another file system"
            ) from error
        links.append(link)
    return links


def wheel_libraries() -> Path | None:
    """The folder of TensorRT-RTX's libraries in this Python installation, None where the wheel is absent."""
    spec = importlib.util.find_spec(LIBRARIES_MODULE)
    locations = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(locations[0]) if locations else None
