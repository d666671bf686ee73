"""The code blocks of the project's pages.

A fence names its language: ``python`` and ``sh`` blocks are run by tests, ``text`` is output, a diagram or the like.
Words behind the language, which no page shows, say more: ``paged`` (``out`` is an artifact of layout paged; without
it, what the page itself exports) and ``no-run: REASON``.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.project.test_wheel import ROOT

PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")))
LANGUAGES = ("python", "sh", "text")
_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block; ``line`` is that of its fence."""

    page: str
    line: int
    info: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def language(self) -> str:
        return self.info.split(" ")[0]

    @property
    def reason_not_to_run(self) -> str | None:
        """What stands behind "no-run:", None for a block that runs."""
        _, found, reason = self.info.partition("no-run:")
        return reason.strip() if found else None

    @property
    def needs_paged(self) -> bool:
        return "paged" in self.info.split(" ")[1:]

    def commands(self) -> list[list[str]]:
        """The words of each line of a shell block, without comments."""
        text = self.text.replace("\\\n", " ")
        return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]


def blocks_of(page: str) -> list[Block]:
    """All blocks of ``page``, in its order."""
    text = Path(ROOT, page).read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, match.start()) + 1, match["info"].strip(), match["text"])
        for match in _FENCE.finditer(text)
    ]
