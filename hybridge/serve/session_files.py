"""Saved sessions: files of one folder, with a subfolder for each client."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hybridge.artifact.errors import OutputError
from hybridge.artifact.limits import SESSIONS
from hybridge.serve.api_keys import Client
from hybridge.serve.errors import NOT_FOUND, PERMISSION, ApiError

_SUFFIX, _PUBLIC = ".session", "public"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class SessionFile:
    """bytes: of the file; created: seconds since 1970."""

    name: str
    bytes: int
    created: int


class SessionFiles:
    """``folder`` None: sessions are turned off."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def path(self, client: Client, name: str) -> Path:
        """The path of the client's session; ApiError for a bad name, or where sessions are turned off."""
        if not _NAME.fullmatch(name):
            raise ApiError(400, "name: expected 1 to 64 letters, digits, dots, hyphens or underscores", param="name")
        return self._of(client) / f"{name}{_SUFFIX}"

    def to_write(self, client: Client, name: str) -> Path:
        """``path``, with its folder made; ApiError when the client has too many."""
        path = self.path(client, name)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"sessions: their folder cannot be made ({error.strerror})") from error
        if not path.exists() and len(self.all(client)) >= SESSIONS:
            raise ApiError(400, f"name: expected at most {SESSIONS} sessions, found more: delete some", param="name")
        return path

    def existing(self, client: Client, name: str) -> Path:
        """``path`` of a session that exists; ApiError 404 for another."""
        path = self.path(client, name)
        if not path.is_file():
            raise _unknown(name)
        return path

    def all(self, client: Client) -> list[SessionFile]:
        """The client's sessions by name."""
        folder, found = self._of(client), []
        if folder.is_dir():
            for entry in os.scandir(folder):
                if entry.name.endswith(_SUFFIX) and entry.is_file(follow_symlinks=False):
                    with suppress(ApiError):  # deleted by another server of this folder
                        found.append(described(Path(entry.path)))
        return sorted(found, key=lambda each: each.name)

    def _of(self, client: Client) -> Path:
        if self._folder is None:
            raise ApiError(403, "expected a server with --session-folder, found one without", PERMISSION)
        return self._folder / (client.tenant or _PUBLIC)


def described(path: Path) -> SessionFile:
    """The file at ``path``; ApiError 404 if there is none any more."""
    name = path.name.removesuffix(_SUFFIX)
    try:
        status = path.stat()
    except FileNotFoundError:
        raise _unknown(name) from None
    return SessionFile(name, status.st_size, int(status.st_mtime))


def _unknown(name: str) -> ApiError:
    return ApiError(404, f"name: expected a saved session, found none called {name}", NOT_FOUND, param="name")
