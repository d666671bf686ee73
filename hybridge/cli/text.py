"""Numbers and untrusted text as people read them."""

from __future__ import annotations

# Control characters other than line feeds and tabs, and those that change the direction of text: terminals obey them.
_CONTROLS = (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_VISIBLE = dict.fromkeys(_CONTROLS, "\ufffd")
_ESCAPED = {code: f"\\u{code:04x}" for code in _CONTROLS}
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def printable(text: str) -> str:
    """``text`` without what a terminal would take for commands; each such character becomes U+FFFD."""
    return text.translate(_VISIBLE)


def printable_json(text: str) -> str:
    """A JSON document with the same characters, in its strings, as escapes."""
    return text.translate(_ESCAPED)


def bytes_text(count: int) -> str:
    """``count`` bytes in binary units: 0 B, 1023 B, 1.0 KiB, 6.7 MiB."""
    value = float(count)
    for unit in UNITS[:-1]:
        if abs(value) < 1024:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {UNITS[-1]}"


def count_text(count: int) -> str:
    """``count`` with a decimal unit: 512, 3.4 M, 1.7 B."""
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**4, "K")):
        if abs(count) >= limit:
            return f"{count / (limit if unit != 'K' else 1000):.1f} {unit}"
    return str(count)


def seconds_text(seconds: float) -> str:
    """``seconds`` in the unit that suits it: 2.5 ms, 12.0 s, 3 min 20 s."""
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"
