"""Peers of a kernel are timed in its run only with a right result; the others are named."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping

import pytest

pytest.importorskip("torch", reason="the kernel benchmarks need torch")

from benchmarks.kernels import case, peers
from benchmarks.kernels.case import KernelCase, checked, measured
from benchmarks.kernels.peers import TOLERANCE, Peer, contest, package_peers
from benchmarks.kernels.prepared import Prepared
from benchmarks.kernels.timing import Calls, Recording
from benchmarks.measure import Spread

BYTES = 100_000_000  # nine sets of inputs
OURS_US, PEER_US = 2.0, 3.0


def _peer(error: float, sets: int | None = None, package: str = "") -> Peer:
    return Peer(lambda: Prepared(lambda: None, lambda: error), sets=sets, package=package)


def _raises() -> Prepared:
    raise RuntimeError("/opt/peer/peer.cuh:7: no kernel image\nfor this GPU")


def _raising_run() -> Prepared:
    return Prepared(lambda: _raises(), lambda: 0.0)


def _recorded(calls: Calls) -> Recording:
    for call in calls:
        call()
    return Recording(None, len(calls), calls)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings without graphs; ours takes OURS_US, a peer PEER_US, or twice as long if it is named slow."""

    def times(recordings: Mapping[str, Recording], repeats: int = 1) -> dict[str, Spread]:
        return {
            name: Spread.of([(2 if "slow" in name else 1) * PEER_US if name else OURS_US] * repeats)
            for name in recordings
        }

    monkeypatch.setattr(peers, "recorded", _recorded)
    monkeypatch.setattr(case, "recorded", _recorded)
    monkeypatch.setattr(case, "replay_times", times)
    monkeypatch.setattr(peers, "replay_times", times)


def _row(timed: Mapping[str, Peer], goal: Callable[..., float] | float = 1.0) -> dict:
    right = Prepared(lambda: None, lambda: 0.0)
    return measured(KernelCase("", BYTES, 0.0, lambda: right, goal, peers=lambda: timed))


def test_a_right_peer_is_recorded_over_as_many_inputs_as_ours() -> None:
    found = contest({"right": _peer(TOLERANCE), "few": _peer(0.0, sets=2)}, 9)
    assert {name: len(recording.calls) for name, recording in found.recordings.items()} == {"right": 9, "few": 2}
    assert not found.left_out and not found.slower


@pytest.mark.parametrize(
    ("peer", "reason"),
    [
        (_peer(0.2), "WrongResultError: error 0.2 (at most 0.01)"),
        (_peer(float("nan")), "WrongResultError: error nan (at most 0.01)"),
        (Peer(_raises), "RuntimeError: peer.cuh:7: no kernel image"),
        (Peer(_raising_run), "RuntimeError: peer.cuh:7: no kernel image"),
    ],
)
def test_a_peer_that_is_wrong_or_raises_is_left_out_with_its_reason(peer: Peer, reason: str) -> None:
    found = contest({"bad": peer, "right": _peer(0.0)}, 1)
    assert list(found.recordings) == ["right"] and found.left_out == {"bad": reason}


def test_a_peer_that_cannot_be_recorded_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(calls: Calls) -> Recording:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(peers, "recorded", refused)
    found = contest({"bad": _peer(0.0)}, 1)
    assert not found.recordings and "capturing" in found.left_out["bad"]


def test_the_fastest_right_variant_of_a_package_takes_part() -> None:
    variants = {"slow": _peer(0.0, package="a"), "fast": _peer(0.0, package="a"), "wrong": _peer(1.0, package="a")}
    found = contest({**variants, "slow other": _peer(0.0, package="b"), "slow alone": _peer(0.0)}, 1)
    assert list(found.recordings) == ["fast", "slow other", "slow alone"]
    assert found.slower == {"slow": 2 * PEER_US} and list(found.left_out) == ["wrong"]


def test_a_check_runs_the_peers_too() -> None:
    right = Prepared(lambda: None, lambda: 0.0)
    timed = {"bad": _peer(0.2), "raising": Peer(_raising_run), "right": _peer(0.0)}
    row = checked(KernelCase("", BYTES, 0.0, lambda: right, peers=lambda: timed))
    assert row["correct"] and list(row["peers_left_out"]) == ["bad", "raising"] and "us" not in row


def test_a_row_has_the_times_of_this_run_and_names_who_is_left_out() -> None:
    row = _row({"fast 2.1": _peer(0.0), "odd 1.0": _peer(1.0)})
    assert row["peers_us"] == {"fast 2.1": PEER_US}
    assert row["best_peer"] == "fast 2.1" and row["speed_up"] == PEER_US / OURS_US
    assert list(row["peers_left_out"]) == ["odd 1.0"]


def test_a_row_names_slower_variants() -> None:
    timed = {"a 2 slow": _peer(0.0, package="a"), "a 2 fast": _peer(0.0, package="a")}
    row = _row(timed)
    assert row["peers_us"] == {"a 2 fast": PEER_US}
    assert row["peers_slower_us"] == {"a 2 slow": 2 * PEER_US}


def test_a_row_without_a_right_peer_has_no_ratio() -> None:
    row = _row(package_peers("no-such-distribution", {"": _raises}, "shown"))
    assert row["peers_left_out"] == {"shown": "ModuleNotFoundError: no-such-distribution is not installed"}
    assert "speed_up" not in row and "speed_up" not in row["targets"]


def test_a_goal_may_depend_on_the_times_of_the_row() -> None:
    peers = {"fast 2.1": _peer(0.0), "slow 1": _peer(0.0)}
    row = _row(peers, lambda times: max(times.values()) / OURS_US)
    assert row["targets"]["speed_up"]["at_least"] == 2 * PEER_US / OURS_US


def test_peers_of_a_package_have_its_version() -> None:
    version = importlib.metadata.version("torch")
    found = package_peers("torch", {"": _raises, "chunk 128": _raises}, "shown")
    assert list(found) == [f"shown {version}", f"shown {version} chunk 128"]
