"""Names of the forms of recurrent operators that differ in how they store their states."""

from __future__ import annotations

SUFFIX_8BIT, SUFFIX_RING = "_8bit", "_ring"


def base_name(name: str) -> str:
    """The operator that ``name``, of one of these forms or not, is a form of."""
    return name.removesuffix(SUFFIX_8BIT).removesuffix(SUFFIX_RING)
