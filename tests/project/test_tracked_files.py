"""What may be in the repository, and what its pages may say about the command line."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.project.pages import PAGES
from tests.project.test_wheel import ROOT

MACHINE_PATH = re.compile(r"(?<![\w.{}$:/-])/(?:home|root|Users|work|workspace)/\w+")
# Of a merge; the third mark may underline a title.
CONFLICT = re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE)
LARGEST_FILE = 12 << 20


def tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_names_a_folder_of_one_machine_or_has_marks_of_a_conflict() -> None:
    found = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for pattern in (MACHINE_PATH, CONFLICT):
            found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in pattern.finditer(text)]
    assert not found


def test_no_file_is_large() -> None:
    assert not [str(path.relative_to(ROOT)) for path in tracked() if path.stat().st_size > LARGEST_FILE]


def test_lines_of_kernels_have_at_most_120_characters() -> None:
    files = [path for path in tracked() if path.suffix in (".cpp", ".cu", ".cuh", ".h")]
    lines = [(path.name, line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    assert files and not [(name, line) for name, line in lines if len(line) > 120]


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_only_commands_and_options_that_exist(page: str) -> None:
    from hybridge.cli.main import COMMANDS
    from hybridge.cli.parser import command as command_of

    commands = {name: {flag for option in command_of(name).params for flag in option.opts} for name in COMMANDS}
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    for line in re.findall(r"(?:^|`|\$ )hybridge ([a-z][^`\n]*)", text, flags=re.MULTILINE):
        command, *words = line.split()
        assert command in commands, f"{page}: hybridge {command}"
        options = {word.split("=")[0].strip("[],.") for word in words if word.startswith(("--", "[--"))}
        assert options <= commands[command] | {"--help"}, f"{page}: hybridge {line}"


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub derives them from its headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_to_files_and_headings() -> None:
    missing = []
    for page in [path for path in tracked() if path.suffix == ".md"]:
        for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8")):
            target = page.parent / link if link else page
            if "://" not in link and not (target.exists() and (not anchor or anchor in headings(target))):
                missing.append(f"{page.relative_to(ROOT)}: {link}{'#' * bool(anchor)}{anchor}")
    assert not missing


def test_pages_name_files_of_the_project_that_exist() -> None:
    folders = ("artifact", "benchmarks", "exporter", "plugin_src", "runtime", "tests", "tools", "trt_plugins")
    missing = []
    for page in [path for path in tracked() if path.suffix == ".md"]:
        names = re.findall(rf"`((?:{'|'.join(folders)})/[\w./-]+)`", page.read_text(encoding="utf-8"))
        missing += [f"{page.relative_to(ROOT)}: {name}" for name in names if not (ROOT / name).exists()]
    assert not missing
