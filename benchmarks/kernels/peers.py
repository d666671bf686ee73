"""Public kernels beside ours, timed in the same run."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, TypeVar

from benchmarks.kernels.prepared import Prepared
from benchmarks.kernels.timing import Recording, recorded, replay_times

TOLERANCE = 1e-2  # data are 16-bit, and so is what some peers hand from one of their kernels to the next
TUNED_PACKAGES = ("fla", "mamba_ssm")
CHOICE_REPLAYS = 3
_LONGEST_REASON = 200
T = TypeVar("T")


class WrongResultError(ValueError):
    """A peer's result differs from the float64 reference."""


@dataclass(frozen=True)
class Peer:
    """A contestant in the same run.

    prepare: makes one set of inputs like ours. sets: how many take turns; None for as many as ours. package: of its
    variants, peers with one text here, the fastest takes part; "" for a peer of its own.
    """

    prepare: Callable[[], Prepared]
    tolerance: float = TOLERANCE
    sets: int | None = None
    package: str = ""


@dataclass(frozen=True)
class Contest:
    """Peers by name. recordings: those that take part. slower: microseconds of the slower variants of a package.

    left_out: why others have no time.
    """

    recordings: Mapping[str, Recording]
    slower: Mapping[str, float]
    left_out: Mapping[str, str]


def package_peers(
    distribution: str, prepares: Mapping[str, Callable[[], Prepared]], package: str = ""
) -> dict[str, Peer]:
    """Peers by name, "PACKAGE VERSION variant", from ``prepare`` by variant, which imports the package.

    One that raises where the distribution is not installed. package: its name, where the distribution has another.
    """
    package = package or distribution
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return {package: Peer(partial(_missing, distribution))}
    return {
        f"{package} {version} {variant}".rstrip(): Peer(prepare, package=distribution)
        for variant, prepare in prepares.items()
    }


def _missing(distribution: str) -> NoReturn:
    raise ModuleNotFoundError(f"{distribution} is not installed")


def contest(peers: Mapping[str, Peer], sets: int) -> Contest:
    """Of the peers with a right result those that take part, where our kernel has so many ``sets`` of inputs.

    A peer that raises is left out too: its package is not ours to mend.
    """
    recordings, left_out = _of_each(peers, lambda peer: _recorded(peer, peer.sets or sets))
    slower: dict[str, float] = {}
    for package in {peers[name].package for name in recordings} - {""}:
        variants = {name: each for name, each in recordings.items() if peers[name].package == package}
        if len(variants) > 1:
            times = {name: each.median for name, each in replay_times(variants, CHOICE_REPLAYS).items()}
            del times[min(times, key=lambda name: times[name])]
            slower |= times
    return Contest({name: each for name, each in recordings.items() if name not in slower}, slower, left_out)


def refused(peers: Mapping[str, Peer]) -> dict[str, str]:
    """Why peers would be left out of a contest, by name. The others' packages keep on disk what they compiled."""

    def tried(peer: Peer) -> None:
        _first(peer)

    return _of_each(peers, tried)[1]


def _of_each(peers: Mapping[str, Peer], use: Callable[[Peer], T]) -> tuple[dict[str, T], dict[str, str]]:
    """What ``use`` returned, and why it raised an error, by the peer's name."""
    found: dict[str, T] = {}
    reasons: dict[str, str] = {}
    for name, peer in peers.items():
        try:
            found[name] = use(peer)
        except Exception as error:
            reasons[name] = _reason(error)
    return found, reasons


def _recorded(peer: Peer, sets: int) -> Recording:
    prepared = [_first(peer), *(peer.prepare() for _ in range(sets - 1))]
    return recorded([each.run for each in prepared])


def _first(peer: Peer) -> Prepared:
    """The first set of inputs, with a right result."""
    first = peer.prepare()
    _tune_again()
    # The first call compiles, and tries variants, each of which updates a state in place: only later ones are checked.
    first.run()
    error = first.error()
    if not error <= peer.tolerance:
        raise WrongResultError(f"error {error:.3g} (at most {peer.tolerance:.3g})")
    return first


def _reason(error: Exception) -> str:
    """One line, without the folders of files, which differ from machine to machine."""
    line = f"{type(error).__name__}: {error}".splitlines()[0]
    return re.sub(r"(?<!\w)/(?:[^\s/]+/)+", "", line)[:_LONGEST_REASON]


def _tune_again() -> None:
    """Let Triton choose each kernel's variant for the next call's sizes; its choice is for the first ones that it saw.

    It tries a variant for 10 ms instead of 100.
    """
    loaded = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] in TUNED_PACKAGES]
    if not loaded:
        return
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.testing import do_bench

    for kernel in (value for module in loaded for value in vars(module).values()):
        while isinstance(kernel, (Autotuner, Heuristics)):
            if isinstance(kernel, Autotuner):
                kernel.cache.clear()
                kernel.cache_results = False
                kernel.do_bench = partial(do_bench, warmup=1, rep=10)
            kernel = kernel.fn
