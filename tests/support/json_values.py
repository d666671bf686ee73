"""Generated JSON: what a hostile or damaged file may hold."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.sampled_from([2**31, 2**63, -(2**64), 10**400, 0.5, -0.0, 1e308, float("inf"), float("nan")])
    | st.sampled_from(["", "inf", "a", "ab", "<s>", "\ud800", "\x00", "\x1b[2J", "../x", "a" * 300])
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["content", "a", "", "é"]), inner, max_size=2)
    ),
    max_leaves=6,
)


def objects(*keys: str) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with some of ``keys`` and any values."""
    return st.dictionaries(st.sampled_from(keys), VALUES, max_size=6)
