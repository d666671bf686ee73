"""Public kernels beside ours: timed in the same run, or their times of one day."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.kernels.prepared import Prepared
from benchmarks.kernels.timing import Recording, recorded

SAME_RUN = " (same run)"
TOLERANCE = 1e-2  # data are 16-bit, and so is what some peers hand from one of their kernels to the next
TUNED_PACKAGES = ("fla", "mamba_ssm")
_LONGEST_REASON = 200


class WrongResultError(ValueError):
    """A peer's result differs from the float64 reference."""


@dataclass(frozen=True)
class Peer:
    """A contestant in the same run.

    prepare: makes one set of inputs like ours. sets: how many take turns; None for as many as ours.
    """

    prepare: Callable[[], Prepared]
    tolerance: float = TOLERANCE
    sets: int | None = None


def package_peers(
    distribution: str, prepares: Mapping[str, Callable[[], Prepared]], package: str = ""
) -> dict[str, Peer]:
    """Peers by name, "PACKAGE VERSION variant (same run)", from ``prepare`` by variant, which imports the package.

    Empty where the distribution is not installed. package: its name, where the distribution has another.
    """
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return {}
    begin = f"{package or distribution} {version}"
    return {f"{begin} {variant}".rstrip() + SAME_RUN: Peer(prepare) for variant, prepare in prepares.items()}


def recorded_peers(peers: Mapping[str, Peer], sets: int) -> tuple[dict[str, Recording], dict[str, str]]:
    """Recordings of the peers with a right result, by name, and why the others have none.

    sets: how many sets of inputs our kernel has. A peer that raises is left out too: its packages are not ours to mend.
    """
    recordings: dict[str, Recording] = {}
    left_out: dict[str, str] = {}
    for name, peer in peers.items():
        try:
            recordings[name] = _recorded(peer, peer.sets or sets)
        except Exception as error:
            left_out[name] = f"{type(error).__name__}: {error}".splitlines()[0][:_LONGEST_REASON]
    return recordings, left_out


def _recorded(peer: Peer, sets: int) -> Recording:
    first = peer.prepare()
    _tune_again()
    # The first call compiles, and tries variants, each of which updates a state in place: only later ones are checked.
    first.run()
    error = first.error()
    if not error <= peer.tolerance:
        raise WrongResultError(f"error {error:.3g} (at most {peer.tolerance:.3g})")
    prepared = [first, *(peer.prepare() for _ in range(sets - 1))]
    return recorded([each.run for each in prepared])


def all_times(constants: Mapping[str, float], timed: Mapping[str, float]) -> dict[str, float]:
    """Microseconds by name: those ``timed`` in this run, and the ``constants`` of peers that were not."""
    families = [f"{_family(name)} " for name in timed]
    kept = {
        name: us
        for name, us in constants.items()
        if not any(family.startswith(f"{_family(name)} ") for family in families)
    }
    return {**kept, **timed}


def peer_times(group: str, case: str) -> Mapping[str, float]:
    """Peer to microseconds for one case, from benchmarks/kernels/peers.json; empty where none was measured."""
    return _constants()["groups"].get(group, {}).get(case, {})


def _family(name: str) -> str:
    """A peer without its version: "flashinfer XQA"."""
    return re.sub(r" \d\S*", "", name.removesuffix(SAME_RUN))


@cache
def _constants() -> dict[str, Any]:
    """Times of public kernels on the same card model, with their versions."""
    constants: dict[str, Any] = json.loads(Path(__file__).with_name("peers.json").read_text(encoding="utf-8"))
    return constants


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
