"""A change of any source of a package changes its digest."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridge.artifact.source_digest import digest_of_folders, source_digest


def test_any_changed_renamed_or_new_source_changes_it(tmp_path: Path) -> None:
    for package in ("a", "b"):
        (tmp_path / package / "inner").mkdir(parents=True)
        (tmp_path / package / "inner" / "form.py").write_text("FORM = 1\n", encoding="utf-8")
    folders = [tmp_path / "a", tmp_path / "b"]
    found = [digest_of_folders(folders)]
    for change in (
        lambda file: file.write_text("FORM = 2\n", encoding="utf-8"),
        lambda file: file.rename(file.with_name("other.py")),
        lambda file: file.with_name("new.py").touch(),
    ):
        change(tmp_path / "a" / "inner" / "form.py")
        found.append(digest_of_folders(folders))
    assert len({*found}) == len(found)
    (tmp_path / "a" / "notes.txt").touch()
    assert digest_of_folders(folders) == found[-1]


def test_packages_of_hybridge_have_digests() -> None:
    assert source_digest("exporter") != source_digest("exporter", "artifact")
    with pytest.raises(FileNotFoundError, match="expected Python sources"):
        source_digest("no_such_package")
