"""Checkpoints named by their id on the Hugging Face hub, which no test reaches."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hybridge.artifact.errors import CheckpointError
from hybridge.hub import checkpoint_folder
from tests.cli.command import hybridge
from tests.support.mamba_ssm_checkpoints import CONFIG

ID = "ibm-granite/granite-4.0-h-micro"


class Hub:
    """A stand-in for the package huggingface_hub: one model, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def snapshot_download(self, repo_id: str, **options: Any) -> str:
        self.calls.append((repo_id, options))
        if repo_id != ID:
            raise OSError("404 Client Error.\n\nRepository Not Found for url")
        return str(self.folder)


@pytest.fixture
def hub(checkpoint: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    found = Hub(checkpoint)
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=found.snapshot_download))
    monkeypatch.chdir(tmp_path)
    return found


def test_an_id_is_downloaded_without_code(hub: Hub, capfd: pytest.CaptureFixture[str], checkpoint: Path) -> None:
    outcome = hybridge(capfd, "export", ID, "out", "--dry-run", "--json")
    assert outcome.code == 0 and outcome.document["model_type"] == "nemotron_h"
    ((name, options),) = hub.calls
    assert name == ID and set(options) == {"allow_patterns", "ignore_patterns"}
    assert set(options["allow_patterns"]) == {"*.safetensors", "*.json", "*.jinja"}


def test_of_an_original_of_mamba_ssm_the_weights_are_downloaded_too(hub: Hub, tmp_path: Path) -> None:
    hub.folder = tmp_path / "snapshot"
    hub.folder.mkdir()
    (hub.folder / "config.json").write_text(json.dumps(CONFIG))
    assert checkpoint_folder(ID) == hub.folder
    assert [options["allow_patterns"] for _, options in hub.calls[1:]] == [["pytorch_model.bin"]]
    (hub.folder / "model.safetensors").touch()
    hub.calls.clear()
    assert checkpoint_folder(ID) == hub.folder and len(hub.calls) == 1


def test_a_folder_of_that_name_comes_first(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / ID).mkdir(parents=True)
    assert checkpoint_folder(ID) == Path(ID) and not hub.calls


@pytest.mark.parametrize("path", ["model", "/owner/model", "a/b/c", "../model", "owner/", "~/model"])
def test_other_paths_are_never_looked_up(hub: Hub, path: str) -> None:
    assert checkpoint_folder(path) == Path(path) and not hub.calls


def test_a_download_that_fails_is_one_sentence(hub: Hub, capfd: pytest.CaptureFixture[str]) -> None:
    outcome = hybridge(capfd, "export", "nobody/nothing", "out", "--dry-run")
    assert outcome.code == 2
    assert outcome.error.startswith("nobody/nothing: expected a folder or a model of the Hugging Face hub, found no")
    assert "(404 Client Error)" in outcome.error and "hf auth login" in outcome.error


def test_without_the_package_the_command_that_downloads_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError) as raised:
        checkpoint_folder(ID)
    sentence = str(raised.value)
    assert f"hf download {ID} --include '*.safetensors' --include '*.json'" in sentence
    assert "--local-dir granite-4.0-h-micro" in sentence and "hub" in sentence.split("let Hybridge do it")[1]
