"""TensorRT's nested phases as one growing number."""

from __future__ import annotations

from hybridge.trt_plugins.build.build_progress import TOTAL, PhaseTree


def reports(*events: tuple) -> list[int]:
    amounts: list[int] = []
    tree = PhaseTree(amounts.append)
    for name, *arguments in events:
        getattr(tree, name)(*arguments)
    return amounts


def test_steps_of_the_root_share_the_total() -> None:
    assert reports(("start", "a", None, 4), ("step", "a", 0), ("step", "a", 1), ("finish", "a")) == [250, 250, 500]


def test_a_nested_phase_fills_one_step_of_its_parent() -> None:
    events = [("start", "a", None, 2), ("step", "a", 0), ("start", "b", "a", 5), ("step", "b", 0), ("finish", "b")]
    assert reports(*events) == [TOTAL // 2, TOTAL // 10, TOTAL * 4 // 10]


def test_repeated_phases_never_go_back_or_beyond_the_total() -> None:
    events = [("start", "a", None, 1)]
    for _ in range(3):
        events += [("start", "b", "a", 2), ("step", "b", 0), ("step", "b", 1), ("finish", "b")]
    amounts = reports(*events, ("finish", "a"))
    assert min(amounts) > 0 and sum(amounts) == TOTAL


def test_unknown_and_empty_phases_are_harmless() -> None:
    assert reports(("step", "x", 0), ("finish", "x"), ("start", "a", "gone", 0), ("finish", "a")) == [TOTAL]
