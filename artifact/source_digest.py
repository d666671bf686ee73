"""A hash of packages' sources, for the keys of caches whose content that code decides."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

_HYBRIDGE = Path(__file__).parent.parent


@lru_cache
def source_digest(*packages: str) -> str:
    """SHA-256, in hexadecimal, over the names and bytes of all Python files of Hybridge's ``packages`` and below them.

    packages: their names in the package hybridge, such as exporter. Computed once in a process; 10 ms for 400 files.
    FileNotFoundError where a package has no sources as files.
    """
    return digest_of_folders(_HYBRIDGE / package for package in packages)


def digest_of_folders(folders: Iterable[Path]) -> str:
    """``source_digest`` of packages in ``folders``, computed anew."""
    digest = hashlib.sha256()
    for folder in folders:
        files = sorted(folder.rglob("*.py"))
        if not files:
            raise FileNotFoundError(f"expected Python sources in {folder}, found none")
        for path in files:
            content = path.read_bytes()
            digest.update(f"{folder.name}/{path.relative_to(folder).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()
