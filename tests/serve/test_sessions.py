"""Sessions are saved, survive the server, and belong to one client."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridge.serve.api_keys import ANONYMOUS, ApiKeys
from hybridge.serve.errors import ApiError
from hybridge.serve.session_files import SessionFiles, described
from hybridge.serve.settings import ModelSettings
from tests.serve.running import Running, running

USER = [{"role": "user", "content": "What is the sea? Tell me all that you know of it, and of its fish."}]
ANN, BOB = {"authorization": "Bearer key-of-ann"}, {"authorization": "Bearer key-of-bob"}


def test_a_session_continues_in_another_server(demo: ModelSettings, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("ann key-of-ann\nbob key-of-bob\n")
    keys, folder = ApiKeys.from_file(tmp_path / "keys"), tmp_path / "sessions"

    def cached(served: Running) -> int:
        body = {"model": "demo", "messages": USER, "max_tokens": 4}
        found = served.client.post("/v1/chat/completions", json=body, headers=ANN).json()["usage"]
        return found["prompt_tokens_details"]["cached_tokens"]

    with running([demo], keys, session_folder=str(folder)) as served:
        assert cached(served) == 0
        body = {"model": "demo", "name": "sea", "messages": USER}
        saved = served.client.post("/v1/sessions", json=body, headers=ANN).json()
        assert saved["tokens"] > 20
        listed = served.client.get("/v1/sessions", headers=ANN).json()["data"]
        assert [(each["name"], each["bytes"]) for each in listed] == [("sea", saved["bytes"])]
        assert served.client.get("/v1/sessions", headers=BOB).json()["data"] == []
    with running([demo], keys, session_folder=str(folder)) as served:
        load = "/v1/sessions/sea/load"
        assert served.client.post(load, json={"model": "demo"}, headers=BOB).status_code == 404
        assert served.client.post(load, json={"model": "demo"}, headers=ANN).json()["tokens"] == saved["tokens"]
        assert cached(served) == saved["tokens"]
        for name in ("..", "%2e%2e%2fkeys", "a%2fb", ".hidden", "x" * 65):
            assert served.client.delete(f"/v1/sessions/{name}", headers=ANN).status_code in (400, 404, 405)
        (damaged,) = folder.glob("*/sea.session")
        damaged.write_bytes(damaged.read_bytes()[:100])
        assert served.client.post(load, json={"model": "demo"}, headers=ANN).status_code == 400
        assert served.client.delete("/v1/sessions/sea", headers=ANN).json()["deleted"]
        assert served.client.get("/v1/sessions", headers=ANN).json()["data"] == []


def test_without_a_folder_there_are_no_sessions(served: Running) -> None:
    assert served.client.get("/v1/sessions").status_code == 403
    assert served.refusal("/v1/sessions", 403, name="a", prompt="x")["type"] == "permission_error"


def test_another_server_of_the_folder_deletes_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = SessionFiles(tmp_path)
    for name in ("a", "b"):
        sessions.to_write(ANONYMOUS, name).write_bytes(b"1234")
    deleted = sessions.existing(ANONYMOUS, "a")

    def scanned(folder: Path) -> Iterator[os.DirEntry[str]]:
        entries = list(scandir(folder))
        deleted.unlink(missing_ok=True)
        return iter(entries)

    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", scanned)
    assert [(each.name, each.bytes) for each in sessions.all(ANONYMOUS)] == [("b", 4)]
    with pytest.raises(ApiError, match="expected a saved session, found none called a") as raised:
        described(deleted)
    assert raised.value.status_code == 404
