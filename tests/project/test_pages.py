"""Every code block of every page runs as printed, in order, in a folder like a fresh checkout."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

import hybridge
from hybridge.cli.main import run_command
from hybridge.exporter.families.decoder_config import BodyConfig
from tests.project.pages import LANGUAGES, PAGES, Block, blocks_of
from tests.project.test_wheel import ROOT
from tests.support.session_folders import copy_cpu_library

CHECKPOINT = ROOT / "examples" / "checkpoints" / "tiny-nemotron-h"
# Lines of shell blocks that this test does not run, and what does.
RUN_ELSEWHERE = {
    "make demo": "every push runs it",
    "python3 -m venv": "test_wheel.py makes such an environment",
    "pip install": "test_wheel.py installs the wheel",
}
# Pages that export, verify or load a model of their own, as other tests do on every push (test_api.py runs what README
# shows first).
SLOW = {
    "README.md",
    "docs/explanation/prefix_cache.md",
    "docs/explanation/serving.md",
    "docs/explanation/speculation.md",
    "docs/how-to/add_a_model.md",
    "docs/how-to/jetson.md",
    "docs/how-to/quantize.md",
    "docs/how-to/transformers.md",
    "docs/reference/python_api.md",
}


def pages_with(language: str) -> list[Any]:
    """The pages that have blocks to run, those that take long marked slow."""
    pages = [page for page in PAGES if any(runs(block, language) for block in blocks_of(page))]
    return [pytest.param(page, marks=pytest.mark.slow) if page in SLOW else page for page in pages]


def runs(block: Block, language: str) -> bool:
    return block.language == language and block.reason_not_to_run is None


@pytest.fixture(scope="module")
def paged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of layout paged for all pages that need one; its short rows bound what the examples generate."""
    out = tmp_path_factory.mktemp("pages") / "paged"
    hybridge.export(CHECKPOINT, out, layout="paged", max_seq_len=96, dtype="float32")
    return out


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: the checkout's examples, and what pages call "path/to/checkpoint" and "prefixes.json"."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "path" / "to").mkdir(parents=True)
    (tmp_path / "path" / "to" / "checkpoint").symlink_to(CHECKPOINT)
    (tmp_path / "prefixes.json").write_text('{"prefixes": {"sea": "The sea", "ids": [5, 6, 7]}}')
    monkeypatch.chdir(tmp_path)
    copy_cpu_library(tmp_path / "cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def check_python_api(names: dict[str, Any], printed: list[str], folder: Path) -> None:
    assert len(printed) == 9 and all(text.strip() for text in printed)
    assert "verified" in printed[0]
    assert printed[4].strip("' \"\n")[:1].isdecimal() and printed[5].rstrip().endswith(("True", "False"))
    assert names["answer"].cached_tokens == names["prefix"].length > 0
    assert "prompt: expected at most 512 tokens (max_seq_len)" in printed[8] and "nowhere" in printed[8]


def check_transformers(names: dict[str, Any], printed: list[str], folder: Path) -> None:
    assert "The President of the United States" in printed[0]
    assert len(list((folder / "cache" / "hybridge" / "models" / "artifacts").iterdir())) == 1
    assert type(names["model"].model).__name__ == "NemotronHModel"


# Maximum words of pages outside of docs/.
WORDS = {"README.md": 1040, "CONTRIBUTING.md": 465, "tests/README.md": 710}
# What a page says that its blocks print or leave.
CHECKS: dict[str, Callable[[dict[str, Any], list[str], Path], None]] = {
    "docs/reference/python_api.md": check_python_api,
    "docs/how-to/transformers.md": check_transformers,
}


@pytest.mark.parametrize("page", pages_with("python"))
def test_python_blocks_run(
    page: str, checkout: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = [block for block in blocks_of(page) if runs(block, "python")]
    if any(block.needs_paged for block in blocks):
        shutil.copytree(request.getfixturevalue("paged"), checkout / "out")
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for block in blocks:
        capsys.readouterr()
        # Lines of a traceback are those of the page.
        exec(compile("\n" * block.line + block.text, page, "exec"), names)
        printed.append(capsys.readouterr().out)
    assert any(text.strip() for text in printed)
    CHECKS.get(page, lambda *_: None)(names, printed, checkout)


@pytest.mark.parametrize("page", pages_with("sh"))
def test_commands_run(page: str, checkout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for block in blocks_of(page):
        for words in block.commands() if runs(block, "sh") else []:
            if words[0] == "hybridge":
                assert run_command(words[1:]) == 0, f"{block.place}: {' '.join(words)}: {capfd.readouterr().err}"
            else:
                assert " ".join(words).startswith(tuple(RUN_ELSEWHERE)), f"{block.place}: {words[0]}: nothing runs it"


def test_every_block_says_what_it_is() -> None:
    blocks = [block for page in PAGES for block in blocks_of(page)]
    unnamed = [block.place for block in blocks if block.language not in LANGUAGES]
    assert not unnamed, f"expected ```python, ```sh or ```text: {', '.join(unnamed)}"
    assert not [block.place for block in blocks if block.reason_not_to_run == ""]
    # Each fence of a page opens or ends one of these blocks.
    fences = sum(
        len(re.findall(r"^ *```", Path(ROOT, page).read_text(encoding="utf-8"), re.MULTILINE)) for page in PAGES
    )
    assert fences == 2 * len(blocks)


def test_the_example_of_transformers_is_short() -> None:
    (block,) = [block for block in blocks_of("docs/how-to/transformers.md") if block.language == "python"]
    assert len([line for line in block.text.splitlines() if line]) <= 10


def test_the_page_of_families_names_every_kind_of_body() -> None:
    named = re.findall(r"`(\w+Config)`", (ROOT / "docs/how-to/add_a_model.md").read_text(encoding="utf-8"))
    assert {body.__name__ for body in get_args(BodyConfig)} <= {*named}


def test_the_pages_stay_short() -> None:
    """All words of docs/, generated pages included; the pages beside it have limits of their own."""
    docs = sum(words_of(page) for page in PAGES if page.startswith("docs/"))
    assert docs <= 22_000, "shorten the pages of docs/"
    too_long = {page: words_of(page) for page, limit in WORDS.items() if words_of(page) > limit}
    assert not too_long, f"expected at most the words in WORDS: shorten {too_long}"


def words_of(page: str) -> int:
    return len((ROOT / page).read_text(encoding="utf-8").split())
