"""Choose a scheme for each group of matrices: the smallest sum of divergences within a budget of bytes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hybridge.quantization.scheme import Scheme


@dataclass(frozen=True)
class Choice:
    """A scheme for a group (None: not quantised), its bytes, and the divergence that it causes alone."""

    scheme: Scheme | None
    nbytes: int
    divergence: float


def chosen(options: Mapping[str, Sequence[Choice]], budget: int) -> dict[str, Choice]:
    """A choice for each group, at most ``budget`` bytes together; the smallest choices must fit.

    Steps along each group's lower convex hull of divergence over bytes are taken in order of their gain per byte: after
    any prefix of them, no other choices with as many bytes have a smaller sum (Everett's theorem).
    """
    hulls = {name: _hull(choices) for name, choices in options.items()}
    found = {name: hull[0] for name, hull in hulls.items()}
    left = budget - sum(choice.nbytes for choice in found.values())
    assert left >= 0, "the caller checks the smallest bytes"
    steps = [(_gain(*pair), name, *pair) for name, hull in hulls.items() for pair in itertools.pairwise(hull)]
    for _, name, before, after in sorted(steps, key=lambda step: -step[0]):
        # After a step that did not fit, later steps of its group are skipped too.
        if found[name] is before and after.nbytes - before.nbytes <= left:
            found[name] = after
            left -= after.nbytes - before.nbytes
    return found


def _hull(choices: Sequence[Choice]) -> list[Choice]:
    """The lower convex hull of divergence over bytes, from the smallest choice on."""
    hull: list[Choice] = []
    for choice in sorted(choices, key=lambda c: (c.nbytes, c.divergence)):
        if hull and choice.divergence >= hull[-1].divergence:
            continue
        while len(hull) > 1 and _gain(hull[-2], hull[-1]) <= _gain(hull[-2], choice):
            hull.pop()
        if hull and hull[-1].nbytes == choice.nbytes:
            hull.pop()
        hull.append(choice)
    return hull


def _gain(before: Choice, after: Choice) -> float:
    """The decrease of divergence per additional byte."""
    return (before.divergence - after.divergence) / max(1, after.nbytes - before.nbytes)
