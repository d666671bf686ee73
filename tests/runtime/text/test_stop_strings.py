"""Stop strings cut the same text however the stream was cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridge.runtime.text import StopStrings

letters = st.text("ab\n", max_size=12)


def cut_text(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The oracle: look at every prefix in turn; the first one that ends with a stop string is the end."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(text=letters, stops=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3), data=st.data())
def test_the_cut_does_not_depend_on_the_pieces(text: str, stops: list[str], data: st.DataObject) -> None:
    matcher, shown, rest = StopStrings(stops), "", text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        shown += matcher.push(rest[:size])
        rest = rest[size:]
        expected, _ = cut_text(text, stops)
        assert expected.startswith(shown)
    if matcher.found is None:
        shown += matcher.flush()
    assert (shown, matcher.found) == cut_text(text, stops)


def test_text_flows_as_soon_as_no_stop_string_can_begin_in_it() -> None:
    matcher = StopStrings(["\nUser:"])
    assert [matcher.push(piece) for piece in ("hello", "\n", "Use", "less", "\nUser", ": x")] == [
        "hello",
        "",
        "",
        "\nUseless",
        "",
        "",
    ]
    assert matcher.found == "\nUser:" and matcher.push("more") == ""


@pytest.mark.parametrize("stops", [[], ["zz"]])
def test_without_a_match_all_text_is_returned(stops: list[str]) -> None:
    matcher = StopStrings(stops)
    assert matcher.push("fizz"[:3]) + matcher.push("") + matcher.flush() == "fiz"


@given(text=letters, stops=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3), data=st.data())
def test_a_stop_string_counts_where_it_ends_late_enough(text: str, stops: list[str], data: st.DataObject) -> None:
    """Text up to ``least`` may hold stop strings, also ones that begin in it and end behind it."""
    least, matcher, shown, done = data.draw(st.integers(0, len(text))), StopStrings(stops, shows_stop=True), "", 0
    while done < len(text):
        size = data.draw(st.integers(1, (least if done < least else len(text)) - done))
        shown += matcher.push(text[done : done + size], may_end=done >= least)
        done += size
    ends = sorted(
        (at + len(stop), at, stop)
        for stop in stops
        for at in range(len(text))
        if text.startswith(stop, at) and at + len(stop) > least
    )
    if matcher.found is None:
        shown += matcher.flush()
    assert (shown, matcher.found) == ((text[: ends[0][0]], ends[0][2]) if ends else (text, None))
