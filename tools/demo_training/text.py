"""Plain text as documents and sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from demo_training.errors import TrainingInputError

DOCUMENT_BREAK = "\f"
_SENTENCE_GAP = re.compile(r"(?<=[.!?])(?<!Mr\.)(?<!Dr\.)(?<!St\.)(?<!Mrs\.)[\"']?\s+(?=[\"'A-Z])")


@dataclass(frozen=True)
class Document:
    """One text with the positions where its sentences begin; `bounds` also holds the end."""

    title: str
    text: str
    bounds: tuple[int, ...]

    @property
    def num_sentences(self) -> int:
        return len(self.bounds) - 1

    def sentences(self, first: int, last: int) -> str:
        """Sentences first to last - 1 (the last one at most), outer white space removed."""
        return self.text[self.bounds[first] : self.bounds[min(last, self.num_sentences)]].strip()


def document_from_text(title: str, text: str) -> Document:
    """Finds the sentence starts of `text`."""
    stripped = text.strip()
    starts = [match.end() for match in _SENTENCE_GAP.finditer(stripped)]
    return Document(title, stripped, (0, *starts, len(stripped)))


def title_from_stem(stem: str) -> str:
    """'state-of-the-union' -> 'State of the Union'."""
    words = re.split(r"[-_ ]+", stem)
    return " ".join(word if word in ("of", "the", "and") else word.capitalize() for word in words)


def text_from_file(path: Path) -> str:
    """The file's text; TrainingInputError when it cannot be read as UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrainingInputError(f"expected a readable UTF-8 text file, found {path}: {error}") from error


def documents_from_files(paths: Sequence[Path]) -> list[Document]:
    """Documents of UTF-8 files, parted by form feeds; the title comes from the file's name."""
    documents: list[Document] = []
    for path in paths:
        title = title_from_stem(path.stem)
        parts = (part for part in text_from_file(path).split(DOCUMENT_BREAK) if part.strip())
        documents.extend(document_from_text(title, part) for part in parts)
    if not documents:
        raise TrainingInputError("expected text to train on, found only empty files; pass --text FILE")
    return documents


def passages_from_document(document: Document, rng: Random, min_chars: int, max_chars: int) -> list[str]:
    """The whole document cut at sentence starts into passages of random length."""
    passages: list[str] = []
    first = 0
    goal = rng.randint(min_chars, max_chars)
    for last in range(1, document.num_sentences + 1):
        long_enough = document.bounds[last] - document.bounds[first] >= goal
        if long_enough or last == document.num_sentences:
            passages.append(document.sentences(first, last))
            first = last
            goal = rng.randint(min_chars, max_chars)
    return [passage for passage in passages if passage]
