"""Numbers as people read them."""

from __future__ import annotations

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


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
