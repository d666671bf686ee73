"""API keys, the clients that they name, and the namespaces of the prefix cache that these clients may use."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hybridge.artifact.errors import SettingError
from hybridge.artifact.limits import API_KEYS_BYTES
from hybridge.artifact.untrusted_file import read_given

_SHORTEST = 8
_QUOTA = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True)
class Client:
    """The owner of an API key. ``tenant`` is "" where the server takes requests without a key.

    tokens_per_day: its own quota; None for that of all clients.
    """

    name: str
    tenant: str
    tokens_per_day: int | None = None

    def namespace(self, cache_key: str | None, salt: str | None) -> str:
        """Cached prefixes are shared only among requests of the same client, ``cache_key`` and ``salt``."""
        if not self.tenant and cache_key is None and salt is None:
            return ""
        return hashlib.sha256(json.dumps([self.tenant, cache_key, salt]).encode()).hexdigest()


ANONYMOUS = Client("anonymous", "")


class ApiKeys:
    """The keys of a file with a line "KEY", "NAME KEY" or "NAME KEY TOKENS_PER_DAY" for each; "#" begins a comment.

    Keys are looked up by their hash, so that the time of a look-up reveals nothing about them.
    """

    def __init__(self, clients: Mapping[str, Client]) -> None:
        """``clients`` by the SHA-256 of their key."""
        self._clients = dict(clients)

    @classmethod
    def from_file(cls, path: Path) -> ApiKeys:
        """SettingError: unreadable, no key, a key of less than 8 characters, or one name or key twice."""
        try:
            lines = read_given(path, API_KEYS_BYTES, SettingError).decode("utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise SettingError(f"{path}: expected text in UTF-8: convert it") from error
        clients: dict[str, Client] = {}
        for number, line in enumerate(lines, 1):
            words = line.split("#")[0].split()
            if not words:
                continue
            name, key, quota = (*([""] if len(words) == 1 else []), *words, "")[:3]
            if len(words) > 3 or len(key) < _SHORTEST or not (not quota or _QUOTA.fullmatch(quota)):
                raise SettingError(
                    f"{path}: expected KEY, NAME KEY or NAME KEY TOKENS_PER_DAY, the key of at least {_SHORTEST} "
                    f"characters, in line {number}: correct it"
                )
            digest = _digest(key)
            name = name or f"key-{digest[:8]}"
            if digest in clients or name in {client.name for client in clients.values()}:
                raise SettingError(f"{path}: expected each name and key once, found line {number} again: remove it")
            clients[digest] = Client(name, digest, int(quota) if quota else None)
        if not clients:
            raise SettingError(f"{path}: expected a key, found none: write one, or leave out the file")
        return cls(clients)

    def client(self, key: str) -> Client | None:
        """The owner of ``key``."""
        return self._clients.get(_digest(key))


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
