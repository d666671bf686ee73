"""Prompt lookup against a search from scratch."""

from hypothesis import given, settings
from hypothesis import strategies as st

from hybridge.runtime.speculation import DraftRequest, NgramDrafter
from hybridge.runtime.speculation.ngram_index import NgramIndex
from tests.support.effort import examples


def searched(tokens: list[int], shortest: int, longest: int, count: int) -> tuple[int, ...]:
    """The definition: the latest earlier place of the longest run at the end, and what follows it, circles included."""
    for length in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        for place in range(len(tokens) - 1, length - 1, -1):
            if tokens[place - length : place] == tokens[len(tokens) - length :]:
                text = list(tokens)
                while len(text) < place + count:
                    text.append(text[len(text) - (len(tokens) - place)])
                return tuple(text[place : place + count])
    return ()


@settings(deadline=None, max_examples=examples(150))
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=30),
    st.integers(1, 3),
    st.integers(0, 2),
    st.lists(st.integers(1, 7), min_size=1, max_size=30),
)
def test_the_index_finds_what_a_search_finds(tokens: list[int], shortest: int, more: int, counts: list[int]) -> None:
    index, grown, left = NgramIndex(shortest, shortest + more), [], list(tokens)
    for count in counts:
        # Some calls come after several tokens.
        grown += left[:count]
        del left[:count]
        if count % 2:
            assert index.finds(grown) == bool(searched(grown, shortest, shortest, 1))
        assert index.propose(grown, count) == searched(grown, shortest, shortest + more, count)


@settings(deadline=None, max_examples=examples(50))
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=40),
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=30),
)
def test_what_was_foreseen_is_what_a_search_before_each_token_finds(
    tokens: list[int], shortest: int, calls: list[tuple[int, bool]]
) -> None:
    index, grown = NgramIndex(shortest, shortest + 1), tokens[:1]
    assert index.foreseen(grown) == ()
    for count, asks in calls:
        expected = []
        for place in range(len(grown), min(len(grown) + count, len(tokens))):
            found = searched(tokens[:place], shortest, shortest, 1)
            if asks:
                assert index.finds(tokens[:place]) == bool(found)
            expected += [found[0] == tokens[place]] if found else []
        grown = tokens[: len(grown) + count]
        if count % 2:
            index.propose(grown, 2)
        assert list(index.foreseen(grown)) == expected and index.foreseen(grown) == ()


def test_a_longer_run_goes_before_a_later_one() -> None:
    index = NgramIndex(1, 3)
    assert index.propose([1, 2, 3, 9, 9, 3, 8, 1, 2, 3], 2) == (9, 9)


def test_a_repetition_continues_beyond_the_known_text() -> None:
    assert NgramIndex(2, 4).propose([5, 1, 2, 3, 1, 2, 3, 1, 2], 7) == (3, 1, 2, 3, 1, 2, 3)
    assert NgramIndex(1, 1).propose([4, 4], 3) == (4, 4, 4)


def test_sequences_are_apart_and_forgotten() -> None:
    drafter = NgramDrafter(1, 2)
    first, second = DraftRequest(7, [1, 2, 1], 2), DraftRequest(8, [1, 5, 1], 1)
    assert [each.token_ids for each in drafter.propose([first, second])] == [(2, 1), (5,)]
    drafter.forget(7)
    drafter.forget(7)
    # A new sequence of the same number shares nothing with the old one.
    assert drafter.propose([DraftRequest(7, [3, 1], 2)])[0].token_ids == ()
