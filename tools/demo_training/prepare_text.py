#!/usr/bin/env python3
"""Turns the three public-domain sources into training text and the held-out text.

python tools/demo_training/prepare_text.py --moby-dick PACKAGE --sotu PACKAGE --king-james FILE --out FOLDER

PACKAGE is an unpacked npm package; FILE is what `bible -f gen1:1-rev22:21` printed: one verse a
line after its reference.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

HELD_OUT_CHAPTER = "chapter_60.txt"
HELD_OUT_BOOK = "Ruth"
HELD_OUT_SPEECH = "1882_chester_a_arthur_r.txt"
HELD_OUT_SPEECH_CHARS = 6000
HELD_OUT_BOOK_CHARS = 5000

_ASCII = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2011": "-", "\u2013": "-"})
_VERSE = re.compile(r"^(\d?[A-Za-z]+)(\d+):(\d+) (.*)$")


def plain(text: str) -> str:
    """Straight quotes, double hyphens for dashes, one space, paragraphs parted by one blank line."""
    text = text.translate(_ASCII).replace("\u2014", "--")
    paragraphs = (re.sub(r"\s+", " ", part).strip() for part in re.split(r"\n\s*\n", text))
    return "\n\n".join(part for part in paragraphs if part)


def moby_dick_chapters(package: Path) -> dict[str, str]:
    """File name -> chapter, in the book's order."""
    paths = sorted((package / "data").glob("chapter_*.txt"), key=lambda path: int(path.stem.split("_")[1]))
    paths.append(package / "data" / "epilogue.txt")
    return {path.name: plain(path.read_text(encoding="utf-8")) for path in paths}


def speeches(package: Path) -> dict[str, str]:
    """File name -> State of the Union address, by year."""
    paths = sorted((package / "data").glob("*.txt"))
    return {path.name: plain(path.read_text(encoding="utf-8")) for path in paths}


def bible_chapters(lines: Iterable[str]) -> dict[tuple[str, str], str]:
    """(book, chapter) -> its verses as one paragraph."""
    verses: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        match = _VERSE.match(line.strip())
        if match is None:
            raise SystemExit(f"error: expected 'Ge1:1 text' on each line, found {line[:40]!r}; run bible -f")
        book, chapter, _, text = match.groups()
        verses.setdefault((book, chapter), []).append(text)
    return {key: plain(" ".join(parts)) for key, parts in verses.items()}


def _cut(text: str, limit: int) -> str:
    """At most `limit` characters, ending with a sentence."""
    return text if len(text) <= limit else text[: text.rindex(". ", 0, limit) + 1]


def _write(path: Path, documents: Sequence[str]) -> None:
    path.write_text("\n\f\n".join(documents) + "\n", encoding="utf-8")
    print(f"{path}: {len(documents)} documents, {path.stat().st_size} bytes", file=sys.stderr)


def main() -> int:
    """Writes moby-dick.txt, state-of-the-union.txt, king-james-bible.txt and heldout.txt."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("--moby-dick", "--sotu", "--king-james", "--out"):
        parser.add_argument(name, required=True, type=Path)
    options = parser.parse_args()
    chapters = moby_dick_chapters(options.moby_dick)
    addresses = speeches(options.sotu)
    bible = bible_chapters(options.king_james.read_text(encoding="utf-8").splitlines())
    book = [text for (name, _), text in bible.items() if name == HELD_OUT_BOOK]
    held_out = [
        chapters.pop(HELD_OUT_CHAPTER),
        _cut(" ".join(book), HELD_OUT_BOOK_CHARS),
        _cut(addresses.pop(HELD_OUT_SPEECH), HELD_OUT_SPEECH_CHARS),
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    _write(options.out / "moby-dick.txt", list(chapters.values()))
    _write(options.out / "state-of-the-union.txt", list(addresses.values()))
    kept = [text for (name, _), text in bible.items() if name != HELD_OUT_BOOK]
    _write(options.out / "king-james-bible.txt", kept)
    (options.out / "heldout.txt").write_text("\n\n".join(held_out) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
