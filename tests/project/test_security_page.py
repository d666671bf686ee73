"""docs/reference/security.md lists every limit of artifact/limits.py with its value, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from hybridge.artifact import limits

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "security.md"
UNITS = {"KIB": "KiB", "MIB": "MiB", "GIB": "GiB"}


def written(name: str, value: float) -> str:
    """The value as the page has it: bytes in the largest unit that divides them."""
    if name.endswith("_SECONDS"):
        return f"{value:g} s"
    if not name.endswith(("_BYTES", "_MEMORY")):
        return f"{value:,}"
    fitting = [unit for unit in UNITS if value % getattr(limits, unit) == 0]
    return f"{value // getattr(limits, fitting[-1])} {UNITS[fitting[-1]]}" if fitting else f"{value:,} bytes"


def test_the_page_lists_every_limit() -> None:
    expected = {
        name: written(name, value) for name, value in vars(limits).items() if name.isupper() and name not in UNITS
    }
    listed = re.findall(r"^- `([A-Z_]+)`, (.+?): .+$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert dict(listed) == expected and len(listed) == len(expected)
