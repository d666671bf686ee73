"""Choose a scheme for each group of matrices so that the sum of divergences is small and the bytes fit a budget."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hybridge.quantization.scheme import Scheme


@dataclass(frozen=True)
class Choice:
    """A scheme of a group (None: it stays as it is), its bytes, and the divergence that it causes by itself."""

    scheme: Scheme | None
    nbytes: int
    divergence: float


def chosen(options: Mapping[str, Sequence[Choice]], budget: int) -> dict[str, Choice]:
    """One choice for each group, of at most ``budget`` bytes together; at least the smallest ones must fit.

    The steps along each group's lower convex hull of divergence over bytes are taken in the order of what they gain a
    byte: no other choice of as many bytes as any prefix of these steps has a smaller sum (Everett's theorem).
    """
    hulls = {name: _hull(choices) for name, choices in options.items()}
    found = {name: hull[0] for name, hull in hulls.items()}
    left = budget - sum(choice.nbytes for choice in found.values())
    assert left >= 0, "the caller checks the smallest bytes"
    steps = [(_gain(*pair), name, *pair) for name, hull in hulls.items() for pair in itertools.pairwise(hull)]
    for _, name, before, after in sorted(steps, key=lambda step: -step[0]):
        # Where a step did not fit, those behind it of the same group are passed over too.
        if found[name] is before and after.nbytes - before.nbytes <= left:
            found[name] = after
            left -= after.nbytes - before.nbytes
    return found


def _hull(choices: Sequence[Choice]) -> list[Choice]:
    """The choices from the smallest on that no line between two others is below; each has a smaller divergence."""
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
    """Divergence that a byte more takes away."""
    return (before.divergence - after.divergence) / max(1, after.nbytes - before.nbytes)
